"""Caltran: a traffic camera through the day; a car at the intersection or not.

J. Hoffman et al., "Continuous Manifold Based Adaptation for Evolving Visual
Domains" (CVPR 2014), from the archive as it unpacks. Domains are those of
"Federated Learning under Evolving Distribution Shifts", Appendix C.
"""

import numpy as np

from tff_shift.data import dataset
from tff_shift.data.readers import image_archives

DATASET = dataset.DatasetInfo(
  shape=(224, 224, 3),
  dtype=np.uint8,
  num_classes=2,
  models={"evolving": "resnet"},
  load=image_archives.caltran,
  evolution=dataset.Evolution(
    num_domains=12, time_range=(0, 23), range_format="{:02d}:00-{:02d}:59"
  ),
)
