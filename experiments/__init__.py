"""Command-line binaries, one per scenario."""
