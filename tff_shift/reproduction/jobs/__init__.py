"""The runs of a table, each a process of its own."""
