"""Your own data to a table: arrays in, a comparison out.

    python -m examples.own_data

Six sensors whose two classes turn a little from month to month. Replace `month`
by what reads your own arrays: any number of clients and domains, examples of
any shape, as many as each client has.

The same comparison from a file of arrays (x, y, domain, client; docs/data.md),
with figures, checkpoints and saved models:

    python -m experiments.evolving --dataset=sensors.npz \
        --algorithm=fed_avg,fed_evolve,fed_evp --seeds=0,1
"""

import numpy as np

from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data.your_own import from_arrays
from tff_shift.simulation.scenarios import evolving

NUM_CLIENTS, NUM_MONTHS, ROUNDS, SEEDS = 6, 8, 10, (0, 1)


def month(client: int, number: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns x [60, 4] and y [60] of a sensor in a month."""
  rng = np.random.default_rng([client, number])
  y = rng.integers(0, 2, 60)
  angle = np.pi * (y + number / NUM_MONTHS)
  centre = np.stack([np.cos(angle), np.sin(angle)] * 2, axis=1)
  return centre + 0.4 * rng.normal(size=(60, 4)), y


def main() -> None:
  """Trains on all months but the last, and prints accuracies on that."""
  # x may be float64 and y int64, as NumPy has them: all is checked and cast.
  clients = from_arrays.evolving(
    [
      [month(client, number) for number in range(NUM_MONTHS)]
      for client in range(NUM_CLIENTS)
    ]
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
