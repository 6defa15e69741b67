"""Runs the plan of each scenario. Imports TensorFlow."""
