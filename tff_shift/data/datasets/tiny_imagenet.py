"""Tiny ImageNet: 200 classes of ImageNet, in colour.

Y. Le and X. Yang, "Tiny ImageNet Visual Recognition Challenge" (CS 231N,
Stanford, 2015), from the archive as it unpacks: the training images, then the
validation images.
"""

import numpy as np

from tff_shift.data import dataset
from tff_shift.data.readers import image_archives

DATASET = dataset.DatasetInfo(
  shape=(64, 64, 3),
  dtype=np.uint8,
  num_classes=200,
  models={"online_adaptation": "resnet"},
  load=image_archives.tiny_imagenet,
)
