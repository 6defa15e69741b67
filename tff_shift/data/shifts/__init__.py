"""Distribution shift: the client data of each scenario."""
