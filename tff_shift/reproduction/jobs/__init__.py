"""Jobs of a table: planning, costs, and running them in processes."""
