"""Fashion-MNIST: articles of clothing, in grey.

H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for
Benchmarking Machine Learning Algorithms" (arXiv:1708.07747), as
tensorflow-datasets stores it: the training split, then the test split.
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
    "guidance": "guided_cnn",
    "dynamic_personalization": "mlp",
  },
  load=functools.partial(tfds_archives.load, "fashion_mnist"),
)
