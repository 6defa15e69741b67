"""Client guidance: learn which client answers a query, and route it there."""
