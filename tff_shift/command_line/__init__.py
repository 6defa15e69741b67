"""Command-line programs: flags, plans, tuning."""

import os
import sys

from tff_shift._util import installed

# Here, because TensorFlow reads it when it is imported. Clients in parallel
# with one thread each are faster than one client after the other with all
# threads each.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
# The binaries import TensorFlow after absl has parsed their flags. TensorFlow
# 2.14 then lists GPUs during its import, before it enables TF2 behaviour, and
# Keras models cannot be built. This enables TF2 behaviour from the start.
os.environ.setdefault("TF2_BEHAVIOR", "1")

try:
  installed.require_tff()
except ImportError as error:
  print(error, file=sys.stderr)
  sys.exit(2)
