"""From training to a file, and from there to the same predictions."""

import numpy as np
import pytest
import tensorflow as tf

import tff_shift
from tests.fixtures import trees
from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import normal
from tests.fixtures.refusals import refused
from tff_shift import algorithms
from tff_shift._util import files
from tff_shift.data import client_dataset
from tff_shift.data.shifts import evolving as evolving_data
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import randomness
from tff_shift.models import guided_model
from tff_shift.models.networks import mlp
from tff_shift.scenarios.evolving import simulation as evolving
from tff_shift.scenarios.guidance import queries
from tff_shift.scenarios.guidance import simulation as guidance
from tff_shift.serving import export
from tff_shift.simulation.engine import callbacks
from tff_shift.simulation.engine import rounds

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]

NUM_CLIENTS = 3


MODEL = mlp.build((2,), num_classes=3, width=6, head_width=5)


def make_data(client, num_examples=6):
  generator = np.random.default_rng(client)
  return client_dataset.ClientDataset.from_arrays(
    x=generator.normal(size=(num_examples, 2)).astype(np.float32),
    y=generator.integers(0, 3, num_examples).astype(np.int32),
    domain_sizes=np.array([num_examples], np.int32),
    seed=randomness.client_seed(0, client),
    client_id=np.int32(client),
  )


def start(algorithm):
  """The first states of a run."""
  data = [make_data(client) for client in range(NUM_CLIENTS)]
  return rounds.Rounds(algorithm, data, run_seed=0)


def export_run(running, folder, **options):
  export.export(
    running.algorithm,
    running.server_state,
    running.states,
    running.data,
    folder,
    **options,
  )


@pytest.mark.long
def test_model_of_a_run_predicts_what_was_evaluated(tmp_path, run_for_each):
  """A run on a turning circle, and its model in a folder."""
  dataset = evolving_data.load_evolving("circle", num_domains=4, seed=0)
  clients = evolving_data.assemble_clients(
    dataset, num_clients=NUM_CLIENTS, seed=0
  )
  fed_evolve = algorithms.get("fed_evolve")
  algorithm = algorithms.build(
    fed_evolve,
    mlp.build((2,), num_classes=2, width=6, head_width=5),
    fed_evolve.HParams(batch_size=8, local_steps=2, learning_rate=0.05),
    num_evaluation_domains=4,
  )
  ends = []

  def on_end(running):
    ends.append(running.round_num)
    export_run(running, tmp_path / "model", clients=[0, 2])

  result = evolving.run(
    algorithm,
    clients,
    num_rounds=2,
    run_seed=0,
    callbacks=[callbacks.LambdaCallback(on_end=on_end)],
  )
  assert ends == [2]
  state = result.server_state
  assert state.round_num == 2
  assert list(result.client_states) == [()] * NUM_CLIENTS

  model = tff_shift.load(tmp_path / "model")
  assert model.clients == (0, 2)
  targets = []
  for client in clients:
    size = client.test.domain_sizes[-1]
    targets.append((client.test.x[-size:], client.test.y[-size:]))
  x, y = (np.concatenate(each) for each in zip(*targets, strict=True))
  right = np.mean(model.predict(x).numpy().argmax(axis=1) == y)
  # The server's mean counts all examples alike.
  server = result.final.server["accuracy"]
  assert 100 * right == pytest.approx(server, rel=1e-6)
  functions = algorithm.spec
  expected = run_for_each(
    lambda weights, own, examples: functions.predict_as_client(
      weights,
      functions.prepare_client(weights, (), own, tf.constant(2)),
      own,
      examples,
    ),
    [
      (
        state.weights,
        evolving.training_data(clients[client], 0),
        client_dataset.ClientDataset.from_arrays(
          *targets[client],
          [0, 0, 0, len(targets[client][0])],
          np.zeros(2, np.int32),
        ),
      )
      for client in model.clients
    ],
  )
  for position, client in enumerate(model.clients):
    found = model.predict_as(client, targets[client][0]).numpy()
    assert_close(found, expected[position], 1e-5, 1e-6)


@pytest.mark.long
def test_feddrm_answers_as_its_federation(tmp_path):
  model = guided_model.with_guide(
    mlp.build((2,), num_classes=3, width=6, head_width=5), NUM_CLIENTS, 7
  )
  fed_drm = algorithms.get("fed_drm")
  algorithm = algorithms.build(
    fed_drm,
    model,
    fed_drm.HParams(batch_size=4, local_steps=3, learning_rate=0.3),
    num_queries=7,
  )
  # The shares of the clients differ.
  held = [make_data(client, 6 + 9 * client) for client in range(NUM_CLIENTS)]
  queried = normal(9, 40, 2)
  found = {}

  def on_end(running):
    export_run(running, tmp_path / "model", clients=range(NUM_CLIENTS))
    asked = queries.Federation(
      algorithm, running.server_state, running.client_states, running.data
    )
    found.update(
      guide=asked.guide(queried),
      answer=asked.answer(queried),
      vote=asked.vote(queried),
    )

  examples = [guidance.examples.Examples(client.x, client.y) for client in held]
  result = guidance.run(
    algorithm,
    examples,
    examples,
    num_rounds=2,
    run_seed=0,
    callbacks=[callbacks.LambdaCallback(on_end=on_end)],
  )
  assert len(result.client_states) == NUM_CLIENTS
  loaded = tff_shift.load(tmp_path / "model")
  routes, probabilities = loaded.guide(queried)
  assert len(set(routes.numpy())) > 1
  np.testing.assert_array_equal(routes, found["guide"].routes)
  assert_close(probabilities, found["guide"].probabilities, 1e-5, 1e-7)
  trees.assert_equal(tuple(loaded.answer(queried)), tuple(found["answer"]))
  np.testing.assert_array_equal(loaded.vote(queried), found["vote"])


@pytest.fixture(scope="module")
def running(context):
  """Clients with models of their own."""
  return start(algorithms.build("local", MODEL))


class TestChosenClients:
  def test_some_clients_do_not_vote(self, running, tmp_path, run_in_graph):
    export_run(running, tmp_path / "model", clients=[2, 0])
    loaded = tff_shift.load(tmp_path / "model")
    assert loaded.clients == (0, 2)
    assert loaded.functions == ("predict_as",)
    x = make_data(7).x
    for client in loaded.clients:
      expected = run_in_graph(
        running.algorithm.model.predict, running.states[client], x
      )
      assert_close(loaded.predict_as(client, x), expected, 1e-5, 1e-6)

  def test_the_graph_does_not_grow_with_them(self, running, tmp_path):
    sizes = []
    for clients in ([0], [0, 1]):
      folder = tmp_path / str(len(clients))
      export_run(running, folder, clients=clients)
      sizes.append((folder / "saved_model.pb").stat().st_size)
    # The signature of a client calls the one graph of all.
    assert sizes[1] < 1.2 * sizes[0], sizes

  def test_without_clients_there_is_nothing_that_predicts(
    self, running, tmp_path
  ):
    export_run(running, tmp_path / "model")
    assert not (tmp_path / "model" / "saved_model.pb").exists()
    with refused("--save_clients"):
      tff_shift.load(tmp_path / "model")

  def test_client_that_is_not_there(self, running, tmp_path):
    with refused("no client 3; there are 3, from 0"):
      export_run(running, tmp_path / "model", clients=[0, 3])
    assert not list(tmp_path.iterdir())


def test_links_are_replaced_and_a_full_disk_keeps_the_model_of_before(
  running, tmp_path, no_file_above
):
  first, folder = tmp_path / "first", tmp_path / "model"
  export_run(running, first, clients=[0])
  folder.symlink_to(first)
  export_run(running, folder, clients=[1])
  assert not folder.is_symlink()
  for size in (100, 10_000):
    with (
      no_file_above(size),
      pytest.raises(files.WriteError, match="model cannot be written"),
    ):
      export_run(running, folder, clients=[2])
  assert tff_shift.load(first).clients == (0,)
  assert tff_shift.load(folder).clients == (1,)
  assert sorted(each.name for each in tmp_path.iterdir()) == [
    "first",
    "model",
  ]


def test_model_is_replaced_and_nothing_else(running, tmp_path):
  folder = tmp_path / "model"
  folder.mkdir()
  (folder / "mine").write_text("kept")
  with refused("no model that could be replaced"):
    export_run(running, folder, clients=[0])
  assert [path.name for path in tmp_path.rglob("*")] == ["model", "mine"]
  export_run(running, tmp_path / "other", clients=[0])
  export_run(running, tmp_path / "other", clients=[1])
  assert tff_shift.load(tmp_path / "other").clients == (1,)
  assert {path.name for path in tmp_path.iterdir()} == {"model", "other"}


def test_prediction_from_examples_is_refused(tmp_path):
  fields = ["x"]

  def work(model, hparams):
    def predict_as_client(weights, state, data, examples):
      logits = model.predict(weights, examples.x)
      used = getattr(data, fields[0])
      return logits + tf.reduce_sum(tf.cast(used, tf.float32))

    functions = algorithms.get("fed_avg").build(model, hparams)
    return functions._replace(predict_as_client=predict_as_client)

  algorithm = algorithm_lib.build(
    "peeks", work, MODEL, algorithms.get("fed_avg").HParams()
  )
  running = start(algorithm)
  for field in ("x", "y"):
    # It is traced anew for each export.
    fields[:] = [field]
    with refused(f"needs its data.{field}; .prepare_client"):
      export_run(running, tmp_path / "model", clients=[0])
    assert not list(tmp_path.iterdir())
  export_run(running, tmp_path / "model")
  assert tff_shift.load(tmp_path / "model").functions == ("predict",)


def test_guide_need_not_be_that_of_a_guided_model(tmp_path):
  fed_avg = algorithms.get("fed_avg")
  algorithm = algorithm_lib.build(
    "factors",
    # A client's logit is the first feature of a query times its own factor.
    lambda model, hparams: fed_avg.build(model, hparams)._replace(
      guide_queries=lambda weights, x: x[:, :1]
      * tf.constant([[1.0, 0.0, -1.0]])
    ),
    MODEL,
    fed_avg.HParams(client_weighting="uniform"),
    num_queries=2,
  )
  data = [make_data(client, 6 + client) for client in range(NUM_CLIENTS)]
  export_run(rounds.Rounds(algorithm, data, run_seed=0), tmp_path / "model")
  routes, probabilities = tff_shift.load(tmp_path / "model").guide(
    np.float32([[2, 0], [-2, 0]])
  )
  np.testing.assert_array_equal(routes, [0, 2])
  # The logits, without the shares of the clients: with uniform weighting a
  # client counts as one, so that they are equal.
  odds = np.exp([[2, 0, -2], [-2, 0, 2]])
  assert_close(probabilities, odds / odds.sum(axis=1, keepdims=True), 1e-5)
