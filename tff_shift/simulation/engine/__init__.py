"""Rounds, client states and checkpoints, shared by all scenarios."""
