"""Aggregation of client updates."""
