"""Pages of results: contents, statistics and writers."""
