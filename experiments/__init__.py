"""Binaries for use in a checkout, their presets, and tables of papers."""
