"""Federated learning under distribution shift, as TFF computations."""
