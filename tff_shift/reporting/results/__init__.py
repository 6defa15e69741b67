"""What each scenario writes into the folder of a run."""
