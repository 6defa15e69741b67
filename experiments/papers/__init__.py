"""Reproduces tables of papers: plans runs, runs them, writes a report page."""
