"""A FedDRM federation that answers queries, also from a folder.

    python -m examples.federation_answers

Four clients hold digits in classes and colours of their own. The server learns
which of them knows best, and sends each query there. Then the federation is
written to a folder and asked again, with TensorFlow alone.
"""

import pathlib
import tempfile

import tff_shift
from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data.shifts import guidance as guidance_data
from tff_shift.serving import export
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds
from tff_shift.simulation.scenarios import queries

NUM_CLIENTS, ROUNDS = 4, 20


def main() -> None:
  """Trains, asks, saves, loads, asks again."""
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
      # At a rate that does not fall, the routes swing from round to round.
      cosine_rounds=ROUNDS,
    ),
    num_queries=256,
  )
  print(algorithm.guidance.answer.type_signature)  # the heads are at CLIENTS
  asked, true = dataset.test[2].x, dataset.test[2].y
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
    classes, routes = federation.answer(asked)
    share = (classes == true).mean()
    print(f"{share:.1%} of client 2's queries are answered rightly,", end=" ")
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
    again = loaded.answer(asked)
  is_same = (again.classes.numpy() == classes).all()
  print("the folder answers the same:", is_same)


if __name__ == "__main__":
  main()
