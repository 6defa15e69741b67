"""Flags, one module for each subject."""
