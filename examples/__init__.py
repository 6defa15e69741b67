"""Short programs, each whole: `python -m examples.<name>`."""

import os

# TensorFlow reads it when it is imported; its own notes are of no use here.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
