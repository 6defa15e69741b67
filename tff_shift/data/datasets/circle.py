"""Circle: generated Gaussian clouds along a half circle.

A. Pesaranghader and H. L. Viktor, "Fast Hoeffding Drift Detection Method for
Evolving Data Streams" (ECML PKDD 2016), in the version of "Federated Learning
under Evolving Distribution Shifts", Appendix C.2.

The centre of cloud m = 0..M - 1 lies at the angle pi m / (M - 1) on the circle
of radius 10 about the origin: the clouds run counter-clockwise from (10, 0) to
(-10, 0). The standard deviation is 0.6 in both coordinates. A point is of class
"inside" when x^2 + y^2 <= 10^2.
"""

import numpy as np

from tff_shift.data import dataset
from tff_shift.data import partition
from tff_shift.data import table

RADIUS = 10.0
STDDEV = 0.6


def generate(
  seed: int, num_domains: int = 30, examples_per_domain: int = 1000
) -> table.Table:
  """Generates the points of all clouds.

  Args:
    seed: Seed of the draw; cloud m depends on (seed, m) and its centre only.
    num_domains: Number of clouds M.
    examples_per_domain: Number of points of each cloud.

  Returns:
    `x` `[num_domains * examples_per_domain, 2]` float32, cloud by cloud; `time`
    is the number of the cloud, from 1.

  Raises:
    ValueError: If a number is below 1, or the seed below 0.
  """
  partition.check_positive_integer("num_domains", num_domains)
  partition.check_positive_integer("examples_per_domain", examples_per_domain)
  angles = np.linspace(0, np.pi, num_domains)
  centres = RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1)
  points = [
    partition.generator("circle", [seed, domain]).normal(
      centre, STDDEV, size=(examples_per_domain, 2)
    )
    for domain, centre in enumerate(centres)
  ]
  x = np.concatenate(points).astype(np.float32)
  # From the stored float32 points, so that labels are consistent with them.
  squared_radius = np.square(x.astype(np.float64)).sum(axis=1)
  y = (squared_radius <= RADIUS**2).astype(np.int32)
  time = np.repeat(
    np.arange(1, num_domains + 1, dtype=np.int32), examples_per_domain
  )
  return table.of_classes(x, y, ("outside", "inside"), time)


DATASET = dataset.DatasetInfo(
  shape=(2,),
  dtype=np.float32,
  num_classes=2,
  models={"evolving": "mlp"},
  generate=generate,
  evolution=dataset.Evolution(num_domains=30, range_format="centre {}"),
)
