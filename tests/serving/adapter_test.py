"""Tests of `ts.Adapter`: the rounds of a run, one batch at a time."""

import contextlib
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pandas
import pytest
import tensorflow as tf

import tff_shift as ts
from tests.fixtures import tables
from tests.fixtures import trees
from tests.fixtures.arrays import assert_close
from tests.fixtures.refusals import refused
from tff_shift import algorithms
from tff_shift.data import examples as examples_lib

pytestmark = pytest.mark.usefixtures("context")

_ROOT = pathlib.Path(__file__).parents[2]
NAMES = ("north", "south", "west")
NUM_STEPS = 3


def draw(num_examples, *seed):
  generator = np.random.default_rng(seed)
  y = np.arange(num_examples, dtype=np.int32) % 3
  x = generator.normal(size=(num_examples, 4)) + 2 * np.eye(4)[y]
  return examples_lib.Examples(x.astype(np.float32), y)


class Streams:
  """The streams of a run. The last client is absent at the second step."""

  num_clients, num_timesteps, omega = 3, NUM_STEPS, None

  def batch(self, client, timestep):
    is_absent = client == 2 and timestep == 2
    return draw(0 if is_absent else 8 + client, timestep, client)


STREAMS = Streams()
X = draw(4, 0).x


def by_name(timestep):
  """The batches of the clients that are present."""
  batches = {
    name: STREAMS.batch(client, timestep).x for client, name in enumerate(NAMES)
  }
  return {name: x for name, x in batches.items() if len(x)}


DEPLOYMENT = ts.Deployment(
  [draw(9, 7, client) for client in range(3)],
  np.array([[0.8, 0.1, 0.1], [0.1, 0.7, 0.1], [0.1, 0.2, 0.8]], np.float32),
)


def build(name="fed_ade", model=None, **hparams):
  if name == "fed_ade":
    hparams = {
      **{"batch_size": 4, "local_epochs": 1, "head_epochs": 1},
      **{"eta_min": 0.1, "eta_max": 1.0},
      **hparams,
    }
  return ts.build_algorithm(
    name,
    model
    or ts.build_model(
      "mlp", input_shape=(4,), num_classes=3, input_dtype=np.float32, width=4
    ),
    ts.hparams(name, **hparams),
    num_clients=3,
  )


@pytest.fixture(scope="module")
def algorithm():
  return build()


def open_adapter(algorithm, folder, deployment=DEPLOYMENT, **options):
  options = {"client_names": NAMES, "seed": 5, **options}
  return ts.Adapter(algorithm, deployment, folder, **options)


def bits(adapter):
  """Everything that a next time step depends on."""
  running = adapter._rounds
  states = trees.bits((running.server_state, running.client_states))
  return [*states, running.round_num, adapter.timestep]


@pytest.mark.slow
@pytest.mark.parametrize(
  "options", [{}, {"rounds_per_step": 2, "participation": 0.5}]
)
def test_same_batches_give_the_bits_and_predictions_of_a_run(
  algorithm, tmp_path, options
):
  run = ts.run_online_adaptation(
    algorithm, Streams(), DEPLOYMENT, run_seed=5, **options
  )
  adapter = open_adapter(algorithm, tmp_path, **options)
  for step in run.timesteps:
    adapted = adapter.adapt(by_name(step.timestep))
    wanted = {
      name: rate
      for name, rate in zip(NAMES, step.learning_rates.tolist(), strict=True)
      if not np.isnan(rate)
    }
    assert adapted.learning_rates == wanted
    assert adapted.timestep == step.timestep
  found = adapter._rounds
  trees.assert_equal(found.server_state, run.server_state)
  trees.assert_equal(found.client_states, list(run.client_states))
  accuracy = []
  for client, name in enumerate(NAMES):
    x, y = STREAMS.batch(client, NUM_STEPS)
    predicted = adapter.predict(name, x)
    assert_close(predicted.probabilities.sum(axis=1), 1, 1e-5)
    accuracy.append(100 * np.mean(predicted.classes == y))
  (of_run, *_) = run.timesteps[-1].clients["accuracy"]
  assert_close(accuracy, of_run, 1e-6)


@pytest.mark.long
def test_a_new_process_goes_on_with_the_same_bits(algorithm, tmp_path):
  whole = open_adapter(algorithm, tmp_path / "whole")
  for timestep in range(1, NUM_STEPS + 1):
    whole.adapt(by_name(timestep))
  with open_adapter(algorithm, tmp_path / "parts") as first:
    first.adapt(by_name(1))
    first.adapt(by_name(2))
    first.save()
    # Not saved, so it is lost.
    first.adapt({"south": draw(5, 99).x})
  program = (
    "import pickle, sys; from tests.serving import adapter_test as t\n"
    "import tff_shift as ts\n"
    "with ts.execution.use('in_process'):\n"
    "  adapter = t.open_adapter(t.build(), sys.argv[1])\n"
    "  assert adapter.timestep == 2\n"
    "  adapter.adapt(t.by_name(3))\n"
    "  adapter.save()\n"
    "  pickle.dump(t.bits(adapter), open(sys.argv[2], 'wb'))\n"
  )
  subprocess.run(
    [sys.executable, "-c", program, tmp_path / "parts", tmp_path / "bits"],
    check=True,
    cwd=_ROOT,
    env={**os.environ, "PYTHONPATH": str(_ROOT)},
    timeout=300,
  )
  assert np.load(tmp_path / "bits", allow_pickle=True) == bits(whole)
  with open_adapter(algorithm, tmp_path / "parts") as third:
    assert bits(third) == bits(whole)
    assert third.learning_rates == whole.learning_rates


@pytest.mark.parametrize(
  "batches, message",
  [
    ({}, "batches must be a dictionary of client and batch"),
    ([X], "batches must be a dictionary of client and batch"),
    (
      {"north": X, "nroth": X},
      "client 'nroth' is unknown; did you mean north?; the clients are"
      " 'north', 'south', 'west'",
    ),
    ({"north": X[:0]}, "batch of client 'north' has no examples"),
    (
      {"south": X, "north": np.full((2, 4), np.nan, np.float32)},
      "the batch of client 'north'",
    ),
    ({"north": np.array([["a"] * 4])}, "the batch of client 'north'"),
  ],
)
def test_bad_batches_are_refused_and_change_nothing(
  adapted, batches, message, refusal
):
  before = bits(adapted)
  assert message in refusal(adapted.adapt, batches)
  assert bits(adapted) == before


@pytest.fixture(scope="module")
def adapted(algorithm, tmp_path_factory):
  adapter = open_adapter(algorithm, tmp_path_factory.mktemp("state"))
  adapter.adapt(by_name(1))
  return adapter


def test_a_time_step_that_fails_changes_nothing(adapted, monkeypatch):
  before = bits(adapted)
  step, calls = adapted._rounds.step, []

  def fail():
    if calls:
      raise KeyboardInterrupt
    calls.append(step())

  monkeypatch.setattr(adapted._rounds, "step", fail)
  monkeypatch.setattr(adapted, "_rounds_per_step", 2)
  with pytest.raises(KeyboardInterrupt):
    adapted.adapt(by_name(2))
  assert len(calls) == 1
  assert bits(adapted) == before


def test_predicting_changes_nothing_and_refuses(adapted):
  before = bits(adapted)
  adapted.predict("west", draw(3, 1).x)
  assert bits(adapted) == before
  with refused("client 'east' is unknown"):
    adapted.predict("east", draw(3, 1).x)
  with refused("the batch of client 'west'"):
    adapted.predict("west", draw(3, 1).x[0])


@pytest.fixture(scope="module")
def saved(algorithm, tmp_path_factory):
  """The folder of a state after the first time step."""
  folder = tmp_path_factory.mktemp("saved")
  with (
    ts.execution.use("in_process"),
    open_adapter(algorithm, folder) as adapter,
  ):
    adapter.adapt(by_name(1))
    adapter.save()
  return folder


@pytest.mark.parametrize(
  "other, message",
  [
    *tables.cases("""
{"rounds_per_step": 2}
    rounds_per_step was 1, and is 2
{"participation": 0.5, "seed": 6}
    seed was 5, and is 6; participation was 1.0, and is 0.5
{"client_names": ("north", "south", "east")}
    client_names lacks 'west', with a saved state, and has 'east', without one
"""),
    (
      {
        "client_names": NAMES[:2],
        "deployment": DEPLOYMENT._replace(initial=DEPLOYMENT.initial[:2]),
      },
      r"client_names lacks 'west', with a saved state\. Keep the names",
    ),
    (
      {
        "deployment": DEPLOYMENT._replace(
          initial=[*DEPLOYMENT.initial[:2], draw(9, 8)],
          feature_names=tuple("abcd"),
        )
      },
      r'deployment.feature_names was null, and is \["a", "b", "c", "d"\];'
      " deployment.initial of client 'west' differs",
    ),
    (
      {"deployment": DEPLOYMENT._replace(confusion=np.eye(3, dtype="f4"))},
      "origin: deployment.confusion differs. Use what",
    ),
  ],
)
def test_a_state_of_other_arguments_is_refused(
  algorithm, saved, other, message
):
  with refused(message):
    open_adapter(algorithm, saved, **other)
  # The folder is free again.
  open_adapter(algorithm, saved).close()


def test_a_state_of_other_hyper_parameters_is_refused(saved):
  with refused(r"hparams.eta_max was 1.0, and is 0.5"):
    open_adapter(build(eta_max=0.5), saved)


@pytest.mark.slow
def test_a_client_joins_a_saved_state_as_within_a_process(algorithm, tmp_path):
  late = {name: STREAMS.batch(i, 2).x for i, name in enumerate(NAMES)}
  late["west"] = draw(7, 3).x
  with open_adapter(algorithm, tmp_path / "whole") as whole:
    whole.adapt({name: by_name(1)[name] for name in NAMES[:2]})
    whole.adapt(late)
  first = DEPLOYMENT._replace(initial=DEPLOYMENT.initial[:2])
  folder = tmp_path / "parts"
  with open_adapter(
    algorithm, folder, first, client_names=NAMES[:2]
  ) as adapter:
    adapter.adapt({name: by_name(1)[name] for name in NAMES[:2]})
    adapter.save()
  # In another order, too: clients are known by name.
  order = [2, 1, 0]
  with open_adapter(
    algorithm,
    folder,
    DEPLOYMENT._replace(initial=[DEPLOYMENT.initial[i] for i in order]),
    client_names=[NAMES[i] for i in order],
  ) as adapter:
    assert adapter.timestep == 1
    assert list(adapter.learning_rates) == ["west", "south", "north"]
    adapter.adapt(late)
    assert bits(adapter) == bits(whole)
    assert adapter.learning_rates == whole.learning_rates
    adapter.save()
  with open_adapter(algorithm, folder) as again:
    assert bits(again) == bits(whole)


@pytest.mark.slow
def test_a_save_that_fails_costs_no_later_one(algorithm, tmp_path):
  with open_adapter(algorithm, tmp_path) as adapter:
    for timestep in (1, 2):
      adapter.adapt(by_name(timestep))
      if timestep == 1:
        adapter.save()
    with contextlib.closing(
      sqlite3.connect(tmp_path / "adapter.sqlite", isolation_level=None)
    ) as other:
      other.execute("BEGIN EXCLUSIVE")
      for _ in range(2):
        with pytest.raises(OSError, match="database is locked"):
          adapter.save()
    adapter.save()
    kept = bits(adapter)
  with open_adapter(algorithm, tmp_path) as again:
    assert bits(again) == kept
    assert again.timestep == 2


def test_a_folder_has_one_adapter(algorithm, saved):
  with (
    open_adapter(algorithm, saved),
    refused(f"{saved} is in use by another"),
  ):
    open_adapter(algorithm, saved)
  lock = saved / ".adapter.sqlite.lock"
  program = (
    "import fcntl, sys, time; file = open(sys.argv[1], 'a');"
    " fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); time.sleep(60)"
  )
  with subprocess.Popen(
    [sys.executable, "-c", program, lock], stdout=subprocess.PIPE
  ) as process:
    try:
      process.stdout.readline()
      with refused("is in use by another"):
        open_adapter(algorithm, saved)
    finally:
      process.kill()
  open_adapter(algorithm, saved).close()


@pytest.mark.parametrize(
  "statement, message",
  [
    (
      "UPDATE checkpoints SET record = replace(record, '\"timestep\": 1',"
      " '\"timestep\": 7')",
      "saved state is damaged.*digest",
    ),
    (
      "UPDATE states SET content = zeroblob(length(content)) WHERE owner = 1",
      "saved state is damaged.*digest",
    ),
    ("PRAGMA user_version = 1", "has format 1, and this version of tff_shift"),
  ],
)
def test_a_changed_file_is_refused(
  algorithm, saved, tmp_path, statement, message
):
  shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
  with (
    contextlib.closing(sqlite3.connect(tmp_path / "adapter.sqlite")) as file,
    file,
  ):
    file.execute(statement)
  with refused(message):
    open_adapter(algorithm, tmp_path)


def test_columns_of_data_frames_are_matched_by_name(algorithm, saved, tmp_path):
  columns = list("abcd")
  named = DEPLOYMENT._replace(feature_names=columns)
  x = draw(6, 1).x
  frame = pandas.DataFrame(x, columns=columns)
  with open_adapter(algorithm, tmp_path, named) as adapter:
    wanted = adapter.predict("west", x)
    found = adapter.predict("west", frame[["d", "b", "a", "c"]])
    np.testing.assert_array_equal(found.probabilities, wanted.probabilities)
    with refused("'west': column 'd' is missing"):
      adapter.adapt({"west": frame[["a", "b", "c"]]})


@pytest.mark.parametrize(
  "change, message",
  tables.cases("""
{"client_names": ("a", "a", "b")}
    client_names must be different
{"client_names": ("a", "b")}
    client_names
{"seed": -1}
    seed
{"rounds_per_step": 0}
    rounds_per_step
{"participation": 0.0}
    participation
"""),
)
def test_bad_arguments_are_refused(algorithm, tmp_path, change, message):
  with refused(message):
    open_adapter(algorithm, tmp_path, **change)


@pytest.mark.slow
def test_what_is_no_algorithm_of_streams_is_refused(algorithm, tmp_path):
  with refused("deployment"):
    ts.Adapter(algorithm, ([], []), tmp_path)
  initial, confusion = DEPLOYMENT.initial, DEPLOYMENT.confusion
  for broken, message in (
    (([*initial[:1], 3], confusion), "client 1 must be a pair of examples"),
    (
      (initial, confusion[:2]),
      r"deployment.confusion: the shape must be \[3, 3\]",
    ),
    ((initial, confusion.T), "column 1 has the sum 0.9; its rows have the sum"),
    (([(initial[0].x[:, :2], initial[0].y)], confusion), "x of client 0"),
  ):
    with refused(message):
      ts.Adapter(algorithm, ts.Deployment(*broken), tmp_path)
  fed_avg = build("fed_avg")
  with refused("fed_avg"):
    ts.Adapter(fed_avg, DEPLOYMENT, tmp_path)


METHODS = [
  name
  for name in ts.algorithm_names()
  if "online_adaptation" in algorithms.describe(name).scenarios
]


def normalized_model():
  # Some adapt normalisation alone.
  keras_model = tf.keras.Sequential(
    [
      tf.keras.layers.Dense(6, input_shape=(4,)),
      tf.keras.layers.BatchNormalization(),
      tf.keras.layers.ReLU(),
      tf.keras.layers.Dense(3),
    ]
  )
  # Scale, shift, mean and variance, as if it were trained.
  keras_model.layers[1].set_weights(
    [np.full(6, value) for value in (1.0, 0.0, 0.1, 2.0)]
  )
  return ts.from_keras(keras_model, initial="given")


@pytest.mark.slow
def test_a_keras_model_that_is_deployed_starts_from_its_weights(tmp_path):
  keras_model = tf.keras.Sequential(
    [
      tf.keras.layers.Dense(6, activation="relu", input_shape=(4,)),
      tf.keras.layers.Dense(3),
    ]
  )
  model = ts.from_keras(keras_model, initial="given")
  adapter = ts.Adapter(
    build(model=model),
    # Pairs, of what a user's arrays have as types.
    ts.Deployment(
      [(draw(9, 7, i).x, draw(9, 7, i).y.astype(int)) for i in range(3)],
      DEPLOYMENT.confusion,
    ),
    tmp_path,
  )
  x = draw(7, 8).x
  assert_close(
    adapter.predict(1, x).probabilities,
    tf.nn.softmax(keras_model(x)).numpy(),
    1e-5,
  )
  adapter.adapt({1: x})
  assert adapter.predict(1, x).probabilities.shape == (7, 3)
