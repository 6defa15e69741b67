"""How a table of a paper becomes runs, and runs a page; see `reproduce`."""
