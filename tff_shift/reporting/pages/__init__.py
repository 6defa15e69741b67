"""Pages of results: what they show, its statistics, and their writers."""
