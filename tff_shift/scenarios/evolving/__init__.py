"""Evolving domains: train on the past domains, predict on the next one."""
