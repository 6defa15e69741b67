"""Command-line binaries, one per scenario."""

import os
import sys

from tff_shift import installed

# Here, because TensorFlow reads both when it is imported. Its own notes, on
# start and on optimising graphs, are of no use to who runs a binary.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Clients in parallel with one thread each are faster than one client after the
# other with all threads each.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

try:
  installed.require_tff()
except ImportError as error:
  print(error, file=sys.stderr)
  sys.exit(2)
