"""The programs that `experiments` and the installed commands start."""
