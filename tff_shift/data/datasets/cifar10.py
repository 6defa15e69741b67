"""CIFAR-10: colour images of ten kinds of things.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009),
as tensorflow-datasets stores it: the training split, then the test split.
"""

import functools

import numpy as np

from tff_shift.data import dataset
from tff_shift.data.readers import corrupted_sources
from tff_shift.data.readers import tfds_archives

DATASET = dataset.DatasetInfo(
  shape=(32, 32, 3),
  dtype=np.uint8,
  num_classes=10,
  models={
    "online_adaptation": "residual_cnn",
    "guidance": "guided_cnn",
    "dynamic_personalization": "cnn",
  },
  load=functools.partial(tfds_archives.load, "cifar10"),
  corrupted=functools.partial(
    corrupted_sources.load_corrupted, "cifar10_corrupted"
  ),
)
