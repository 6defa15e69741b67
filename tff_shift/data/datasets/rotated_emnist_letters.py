"""The letters of EMNIST, rotated further from domain to domain.

Domains and angles are those of "Federated Learning under Evolving Distribution
Shifts", Appendix C; the source of the images: `emnist_letters`.
"""

import dataclasses

from tff_shift.data import dataset
from tff_shift.data.datasets import emnist_letters

DATASET = dataclasses.replace(
  emnist_letters.DATASET,
  models={"evolving": "cnn"},
  evolution=dataset.Evolution(num_domains=12, angle_step=8.0),
)
