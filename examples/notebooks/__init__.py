"""Notebooks as programs with cells; `convert` makes the notebooks."""
