"""Portraits: faces from yearbooks of 1905 to 2013, in grey; woman or man.

S. Ginosar et al., "A Century of Portraits" (ICCV Workshops 2015), from the
archive as it unpacks. Domains are those of "Federated Learning under Evolving
Distribution Shifts", Appendix C.
"""

import numpy as np

from tff_shift.data import dataset
from tff_shift.data.readers import image_archives

DATASET = dataset.DatasetInfo(
  shape=(32, 32, 1),
  dtype=np.uint8,
  num_classes=2,
  models={"evolving": "wide_resnet"},
  load=image_archives.portraits,
  evolution=dataset.Evolution(
    num_domains=9, time_range=(1905, 2013), range_format="{}-{}"
  ),
)
