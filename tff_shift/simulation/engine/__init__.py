"""Rounds, client states, checkpoints: what all scenarios share."""
