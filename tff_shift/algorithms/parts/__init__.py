"""Building blocks shared by algorithms."""
