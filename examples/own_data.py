"""Compares algorithms on your own arrays.

    python -m examples.own_data

There are six sensors, whose two classes rotate a little from month to month.
Replace `month` by a function that reads your own arrays: any number of clients,
domains and examples, of any shape.

The same comparison from a file of arrays (x, y, domain, client;
docs/how_to/your_data.md), with figures, checkpoints and saved models:

    python -m experiments.evolving --dataset=sensors.npz \
        --algorithm=fed_avg,fed_evolve,fed_evp --seeds=0,1
"""

import numpy as np

from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data import from_python
from tff_shift.scenarios.evolving import simulation as evolving

NUM_CLIENTS, NUM_MONTHS, ROUNDS, SEEDS = 6, 8, 10, (0, 1)


def month(client: int, number: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns x [60, 4] and y [60] of a sensor in a month."""
  rng = np.random.default_rng([client, number])
  y = rng.integers(0, 2, 60)
  angle = np.pi * (y + number / NUM_MONTHS)
  centre = np.stack([np.cos(angle), np.sin(angle)] * 2, axis=1)
  return centre + 0.4 * rng.normal(size=(60, 4)), y


def main() -> None:
  """Trains on all months except the last, and prints accuracies on the last."""
  # NumPy's float64 and int64 are allowed: arrays are validated and cast.
  clients = from_python.from_arrays(
    "evolving",
    [
      [month(client, number) for number in range(NUM_MONTHS)]
      for client in range(NUM_CLIENTS)
    ],
  )
  model = models.build(
    "mlp", input_shape=(4,), num_classes=2, input_dtype=np.float32, width=32
  )
  print(f"{'algorithm':12}{'server':>8}{'client':>8}  accuracy in %, mean of"
        f" {len(SEEDS)} seeds")  # fmt: skip
  with execution.use("auto"):
    for name in ("fed_avg", "fed_evolve", "fed_evp"):
      module = algorithms.get(name)
      algorithm = algorithms.build(
        name,
        model,
        module.HParams(optimizer="adam", learning_rate=1e-2),
        num_evaluation_domains=NUM_MONTHS,
      )
      finals = [
        evolving.run(algorithm, clients, num_rounds=ROUNDS, run_seed=seed).final
        for seed in SEEDS
      ]
      server, client = (
        np.mean([metrics["accuracy"] for metrics in each])
        for each in (
          [final.server for final in finals],
          [final.client for final in finals],
        )
      )
      print(f"{name:12}{server:8.1f}{client:8.1f}")


if __name__ == "__main__":
  main()
