"""CIFAR-100 with its 20 superclasses as labels.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009),
as tensorflow-datasets stores it: the training split, then the test split.
Examples are partitioned over clients by the 100 fine labels, as in the program
of FedDRM's authors.
"""

import functools

import numpy as np

from tff_shift.data import dataset
from tff_shift.data.readers import tfds_archives

DATASET = dataset.DatasetInfo(
  shape=(32, 32, 3),
  dtype=np.uint8,
  num_classes=20,
  models={"guidance": "guided_cnn"},
  load=functools.partial(tfds_archives.load, "cifar100", label="coarse_label"),
  fine_labels="cifar100",
)
