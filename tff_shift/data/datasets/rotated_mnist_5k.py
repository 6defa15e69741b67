"""5,000 images of MNIST, rotated further from domain to domain.

The source of the images: `mnist_5k`.
"""

import dataclasses

from tff_shift.data import dataset
from tff_shift.data.datasets import mnist_5k

DATASET = dataclasses.replace(
  mnist_5k.DATASET,
  models={"evolving": "cnn"},
  evolution=dataset.Evolution(num_domains=12, angle_step=15.0),
)
