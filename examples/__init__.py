"""Short programs, each whole: `python -m examples.<name>`."""
