"""Client data from your own arrays, files and functions."""
