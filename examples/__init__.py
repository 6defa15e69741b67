"""Short, complete programs: `python -m examples.<name>`."""

# Before them: it makes TFF importable.
import tff_shift  # noqa: F401
