"""How well the unseen domain is predicted without any training.

  python -m benchmarks.nearest_class_means --dataset=circle --seeds=0,1,2

Each example of the target domain is given the class whose mean over the last
source domain is nearest, all clients' examples together, features or pixels as
they are. What a method adds has to be more than that.
"""

import numpy as np
from absl import app
from absl import flags
from sklearn import neighbors

from tff_shift.data import domains

FLAGS = flags.FLAGS


def accuracy(dataset: domains.EvolvingDataset) -> float:
  """Returns the accuracy on the last domain, in percent.

  Args:
    dataset: The domains, at least two.
  """
  source, target = (
    (each.x.reshape(len(each.x), -1).astype(np.float64), each.y)
    for each in dataset.domains[-2:]
  )
  return 100.0 * neighbors.NearestCentroid().fit(*source).score(*target)


def main(_) -> None:
  """Prints the accuracy for each seed."""
  for seed in map(int, FLAGS.seeds):
    dataset = domains.load_evolving(FLAGS.dataset, seed=seed)
    print(
      f"{FLAGS.dataset}, seed {seed}: {accuracy(dataset):.1f} %", flush=True
    )


if __name__ == "__main__":
  flags.DEFINE_string("dataset", "circle", "A data set with domains.")
  flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of the data.")
  app.run(main)
