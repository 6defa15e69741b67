"""Keras models as pure functions."""
