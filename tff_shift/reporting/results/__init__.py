"""Final metrics and figures of each scenario."""
