"""Drivers, one per scenario, and what they share: results and progress."""
