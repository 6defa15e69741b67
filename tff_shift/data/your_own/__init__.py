"""Client data from a user's arrays, files and functions."""
