"""Readers of published archives."""
