"""Shows how a federated model goes stale, and that training on keeps it useful.

    python -m examples.going_stale [FIGURE.png]

There are six clients with handwritten digits (5,000 images of MNIST that come
with a package; nothing is downloaded). Each client's digits turn by its own
angle from month to month. FedAvg trains one model on the first two months only,
and the other one, before each month, on all months until then. Both are
measured on the coming month, of which no client has trained on an example.
"""

import functools
import sys

import numpy as np
from matplotlib.figure import Figure

import tff_shift as ts
from tff_shift.data.images import transforms

NUM_CLIENTS, NUM_MONTHS, FIRST_MONTHS, ROUNDS = 6, 10, 2, 15
SEEDS = (0, 1, 2)


def months(seed: int) -> list[list[tuple[np.ndarray, np.ndarray]]]:
  """Returns the digits `(x, y)` of each client and month.

  Every digit of the data set is at one client in one month.
  """
  digits = ts.datasets.load("mnist_5k")
  order = np.random.default_rng(seed).permutation(len(digits.y))
  parts = np.array_split(order, NUM_CLIENTS * NUM_MONTHS)

  def month(client, number):
    part = parts[client * NUM_MONTHS + number]
    degrees_per_month = 5 + 2 * client
    turned = transforms.rotate(digits.x[part], number * degrees_per_month)
    return turned, digits.y[part]

  return [
    [month(client, number) for number in range(NUM_MONTHS)]
    for client in range(NUM_CLIENTS)
  ]


@functools.cache
def fed_avg(num_months: int):
  """Returns FedAvg that is evaluated on the first `num_months` months."""
  model = ts.build_model(
    "mlp", input_shape=(28, 28, 1), num_classes=10, input_dtype="uint8"
  )
  return ts.build_algorithm(
    "fed_avg",
    model,
    ts.hparams("fed_avg", optimizer="adam", learning_rate=1e-3),
    num_evaluation_domains=num_months,
  )


def accuracy(data, sources: range, target: int, seed: int) -> float:
  """Trains on the months `sources`; returns the accuracy in month `target`."""
  clients = ts.from_arrays(
    "evolving",
    [[mine[month] for month in (*sources, target)] for mine in data],
    num_classes=10,
  )
  algorithm = fed_avg(len(sources) + 1)
  result = ts.run_evolving(algorithm, clients, num_rounds=ROUNDS, run_seed=seed)
  return result.final.measured()["server_accuracy"]


CURVES = (
  ("trained once", lambda month: range(FIRST_MONTHS)),
  ("trained every month", range),
)


def draw(curves: dict[str, np.ndarray], path: str) -> None:
  """Plots the mean and the range over seeds of `[seeds, months]`, by label."""
  figure = Figure(figsize=(6.4, 3.4), layout="constrained")
  axes = figure.add_subplot()
  colors = ("#D55E00", "#0072B2")
  for (label, values), color, marker in zip(
    curves.items(), colors, "os", strict=True
  ):
    time = np.arange(FIRST_MONTHS, NUM_MONTHS)
    axes.plot(
      time, values.mean(axis=0), color=color, marker=marker, label=label
    )
    axes.fill_between(
      time,
      values.min(axis=0),
      values.max(axis=0),
      color=color,
      alpha=0.15,
      lw=0,
    )
  axes.set_xlabel("month")
  axes.set_ylabel("accuracy in the coming month, %")
  axes.set_ylim(0, 100)
  axes.grid(alpha=0.3)
  axes.spines[["top", "right"]].set_visible(False)
  axes.legend(frameon=False, loc="lower left")
  figure.savefig(path, dpi=120)


def main(path: str = "") -> None:
  """Prints the accuracies, and draws them if there is a path."""
  curves = {}
  with ts.execution.use("auto"):
    for label, sources in CURVES:
      curves[label] = np.array(
        [
          [
            accuracy(data, sources(month), month, seed)
            for month in range(FIRST_MONTHS, NUM_MONTHS)
          ]
          for seed in SEEDS
          for data in [months(seed)]
        ]
      )
      means = " ".join(f"{mean:5.1f}" for mean in curves[label].mean(axis=0))
      print(
        f"{label:20}{means}  % in months {FIRST_MONTHS} to {NUM_MONTHS - 1}"
      )
  if path:
    draw(curves, path)


if __name__ == "__main__":
  main(*sys.argv[1:2])
