"""Answers queries with a FedDRM federation, also after an export.

    python -m examples.federation_answers

Four clients hold digits with different label distributions and colours. The
server learns which client is best equipped for a query, and routes the query
there. Then the federation is exported to a folder, and answers the same queries
with TensorFlow alone.
"""

import pathlib
import tempfile

import tff_shift
from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data.shifts import guidance as guidance_data
from tff_shift.scenarios.guidance import queries
from tff_shift.serving import export
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds

NUM_CLIENTS, ROUNDS = 4, 20


def main() -> None:
  """Trains, answers queries, exports, loads, and answers them again."""
  dataset = guidance_data.load_guidance(
    "digits",
    num_clients=NUM_CLIENTS,
    partition="dirichlet_0.3",
    intensity="high",
    seed=0,
  )
  model = models.build(
    "guided_cnn",
    input_shape=(28, 28, 3),
    num_classes=10,
    num_clients=NUM_CLIENTS,
  )
  fed_drm = algorithms.get("fed_drm")
  algorithm = algorithms.build(
    fed_drm,
    model,
    fed_drm.HParams(
      lambda_=0.8,
      momentum=0.9,
      learning_rate=0.05,
      # At a constant rate, routes oscillate from round to round.
      cosine_rounds=ROUNDS,
    ),
    num_queries=256,
  )
  print(algorithm.guidance.answer.type_signature)  # Heads are at CLIENTS.
  x, y = dataset.test[2].x, dataset.test[2].y
  with execution.use("auto"), tempfile.TemporaryDirectory() as folder:
    running = rounds.Rounds(
      algorithm,
      client_data.training_data(dataset.train, run_seed=0),
      run_seed=0,
    )
    for _ in range(ROUNDS):
      running.step()
    federation = queries.Federation(
      algorithm, running.server_state, running.client_states, running.data
    )
    classes, routes = federation.answer(x)
    accuracy = (classes == y).mean()
    print(
      f"{accuracy:.1%} of client 2's queries are answered correctly,", end=" "
    )
    print(f"{(routes == 2).mean():.1%} by client 2 itself")
    export.export(
      algorithm,
      running.server_state,
      running.client_states,
      running.data,
      pathlib.Path(folder, "federation"),
      clients=range(NUM_CLIENTS),
    )
    loaded = tff_shift.load(pathlib.Path(folder, "federation"))
    again = loaded.answer(x)
  is_same = (again.classes.numpy() == classes).all()
  print("the exported federation gives the same answers:", is_same)


if __name__ == "__main__":
  main()
