"""Flags, one module per subject."""
