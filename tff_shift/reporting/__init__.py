"""Reporting: metrics, figures, experiment trackers and pages."""
