"""Hyper-parameter search: trials, and selection among them."""
