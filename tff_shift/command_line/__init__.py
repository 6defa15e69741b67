"""Command-line programs: flags, plans, tuning, binaries."""
