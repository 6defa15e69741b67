"""Algorithms as TFF learning processes, for TFF's own training loops."""
