"""MNIST: handwritten digits, in grey.

Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-Based Learning Applied
to Document Recognition" (Proceedings of the IEEE, 1998), as tensorflow-datasets
stores it: the training split, then the test split.
"""

import functools

import numpy as np

from tff_shift.data import dataset
from tff_shift.data.readers import tfds_archives

DATASET = dataset.DatasetInfo(
  shape=(28, 28, 1),
  dtype=np.uint8,
  num_classes=10,
  models={
    "online_adaptation": "residual_cnn",
    "guidance": "guided_cnn",
    "dynamic_personalization": "mlp",
  },
  load=functools.partial(tfds_archives.load, "mnist"),
)
