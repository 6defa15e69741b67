"""MNIST, rotated further from domain to domain.

Domains and angles are those of "Federated Learning under Evolving Distribution
Shifts", Appendix C; the source of the images: `mnist`.
"""

import dataclasses

from tff_shift.data import dataset
from tff_shift.data.datasets import mnist

DATASET = dataclasses.replace(
  mnist.DATASET,
  models={"evolving": "cnn"},
  evolution=dataset.Evolution(num_domains=12, angle_step=15.0),
)
