"""Drivers, one per scenario, and their rounds, checkpoints and results."""
