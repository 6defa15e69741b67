"""The template of algorithms, local training, evaluation and aggregation."""
