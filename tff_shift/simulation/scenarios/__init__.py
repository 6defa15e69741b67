"""One driver for each scenario."""
