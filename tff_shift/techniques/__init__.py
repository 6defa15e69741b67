"""Building blocks that algorithms share."""
