"""The binaries, started by `experiments` and by the installed commands."""
