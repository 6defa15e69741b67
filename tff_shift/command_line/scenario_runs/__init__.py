"""The runs of each scenario, once they are planned. Imports TensorFlow."""
