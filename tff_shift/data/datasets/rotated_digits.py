"""scikit-learn's digits, rotated further from domain to domain.

The source of the images: `digits`.
"""

import dataclasses

from tff_shift.data import dataset
from tff_shift.data.datasets import digits

DATASET = dataclasses.replace(
  digits.DATASET,
  models={"evolving": "cnn"},
  evolution=dataset.Evolution(num_domains=8, angle_step=15.0),
)
