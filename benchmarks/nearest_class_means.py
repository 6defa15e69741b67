"""Predicts the unseen domain without training, as a baseline.

  python -m benchmarks.nearest_class_means --dataset=circle --seeds=0,1,2
  python -m benchmarks.nearest_class_means --num_clients=10 --dirichlet=0.1

Assigns to each example of the target domain the class whose mean over the last
source domain is nearest, in the raw features or pixels of all clients' pooled
examples. With --num_clients, also reports the accuracy of clients that predict
their most frequent class. A method should exceed both.
"""

from collections.abc import Sequence

import numpy as np
from absl import app
from absl import flags
from sklearn import neighbors

from tff_shift.data.shifts import evolving

FLAGS = flags.FLAGS


def accuracy(dataset: evolving.EvolvingDataset) -> float:
  """Returns the accuracy on the last domain, in percent.

  Args:
    dataset: The domains, at least two.
  """
  source, target = (
    (each.x.reshape(len(each.x), -1).astype(np.float64), each.y)
    for each in dataset.domains[-2:]
  )
  return 100.0 * neighbors.NearestCentroid().fit(*source).score(*target)


def accuracy_of_largest_classes(clients: Sequence[evolving.Client]) -> float:
  """Returns the mean accuracy of predicting each client's most frequent class.

  Args:
    clients: At least one of them has examples of the last domain.

  Returns:
    The accuracy on the last domain, in percent.
  """
  found = []
  for client in clients:
    target = client.test.y[len(client.test.y) - client.test.domain_sizes[-1] :]
    if len(target):
      found.append(np.mean(target == np.bincount(client.train.y).argmax()))
  return 100.0 * float(np.mean(found))


def main(_) -> None:
  """Prints the accuracies for each seed."""
  for seed in map(int, FLAGS.seeds):
    dataset = evolving.load_evolving(FLAGS.dataset, seed=seed)
    line = f"{FLAGS.dataset}, seed {seed}: {accuracy(dataset):.1f} %"
    if FLAGS.num_clients:
      clients = evolving.assemble_clients(
        dataset,
        num_clients=FLAGS.num_clients,
        dirichlet=FLAGS.dirichlet,
        seed=seed,
      )
      line += f", largest class {accuracy_of_largest_classes(clients):.1f} %"
    print(line, flush=True)


if __name__ == "__main__":
  flags.DEFINE_string("dataset", "circle", "A data set with domains.")
  flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of the data.")
  flags.DEFINE_integer("num_clients", 0, "Number of clients. 0: no clients.")
  flags.DEFINE_float(
    "dirichlet",
    float("inf"),
    "Dirichlet concentration of the clients' label distributions.",
  )
  app.run(main)
