"""Short, complete programs: `python -m examples.<name>`."""
