"""Federated learning under distribution shift, as TensorFlow Federated computations."""
