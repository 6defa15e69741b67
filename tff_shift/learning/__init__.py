"""What every algorithm is composed of."""
