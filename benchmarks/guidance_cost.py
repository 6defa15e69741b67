"""Times the answer to a query: guided to one client, or voted by all clients.

  python -m benchmarks.guidance_cost

A FedDRM federation in its initial state answers the same queries (random images
of 32 x 32), alternating between both ways; the ratio is the median over
repetitions. A guided query passes once through the shared trunk and the client
branch, and once through one client's model; a vote passes it through the models
of all clients. Run it on an idle machine.
"""

import statistics
import time

import numpy as np
from absl import app
from absl import flags
from absl import logging

from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data import examples
from tff_shift.learning import randomness
from tff_shift.scenarios.guidance import queries
from tff_shift.simulation.engine import client_data

_REPETITIONS = flags.DEFINE_integer(
  "repetitions", 7, "Number of repetitions.", lower_bound=1
)
_NUM_QUERIES = flags.DEFINE_integer(
  "num_queries", 2048, "Queries per repetition.", lower_bound=1
)
_NUM_CLIENTS = flags.DEFINE_list(
  "num_clients", ["8", "32"], "Comma-separated numbers of clients."
)
_MODEL = flags.DEFINE_string("model", "guided_cnn", "The model.")

_SHAPE = (32, 32, 3)


def _federation(num_clients: int) -> queries.Federation:
  """Makes a federation in its initial state."""
  module = algorithms.get("fed_drm")
  algorithm = algorithms.build(
    module,
    models.build(
      _MODEL.value,
      input_shape=_SHAPE,
      num_classes=10,
      num_clients=num_clients,
    ),
    module.HParams(),
    num_queries=_NUM_QUERIES.value,
  )
  data = client_data.training_data(
    [
      examples.Examples(
        np.zeros([1, *_SHAPE], np.uint8), np.zeros([1], np.int32)
      )
    ]
    * num_clients,
    run_seed=0,
  )
  state = algorithm.initialize(randomness.server_seed(0))
  return queries.Federation(
    algorithm,
    state,
    algorithm.initialize_client(state, [client.seed for client in data]),
    data,
  )


def main(_) -> None:
  """Times both ways alternately and prints medians and the ratio."""
  # TFF logs each compilation at INFO.
  logging.set_verbosity(logging.WARNING)
  x = np.random.default_rng(0).integers(
    0, 256, [_NUM_QUERIES.value, *_SHAPE], np.uint8
  )
  for num_clients in map(int, _NUM_CLIENTS.value):
    with execution.use("in_process"):
      federation = _federation(num_clients)
      ways = {"guided": federation.answer, "vote": federation.vote}
      seconds = {name: [] for name in ways}
      # The first repetition compiles.
      for _ in range(1 + _REPETITIONS.value):
        for name, ask in ways.items():
          start = time.perf_counter()
          ask(x)
          seconds[name].append(time.perf_counter() - start)
    timed = {name: each[1:] for name, each in seconds.items()}
    ratios = [
      vote / guided
      for guided, vote in zip(timed["guided"], timed["vote"], strict=True)
    ]
    print(
      f"{num_clients} clients:"
      + "".join(
        f" {name} {1e3 * statistics.median(each) / len(x):.3f} ms a query,"
        for name, each in timed.items()
      )
      + f" vote / guided {statistics.median(ratios):.2f}"
      f" ({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
  app.run(main)
