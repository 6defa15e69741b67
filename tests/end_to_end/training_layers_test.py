"""A user's Keras model with a frozen base, dropout and a regularizer."""

import textwrap

import numpy as np
import pytest

import tff_shift
from tff_shift.data.shifts import evolving as evolving_data

_MODEL = textwrap.dedent(
  """
  import os

  import tensorflow as tf

  layers = tf.keras.layers


  def build(input_shape, num_classes):
    base = tf.keras.Sequential(
      [
        layers.InputLayer(input_shape),
        layers.Conv2D(
          4,
          5,
          strides=4,
          kernel_initializer=tf.keras.initializers.GlorotUniform(
            seed=int(os.environ.get("SEED_OF_BASE", 0))
          ),
        ),
        layers.BatchNormalization(
          moving_mean_initializer=tf.keras.initializers.Constant(0.1),
          moving_variance_initializer=tf.keras.initializers.Constant(0.2),
        ),
        layers.ReLU(),
        layers.Flatten(),
      ],
      name="base",
    )
    base.trainable = False
    return tf.keras.Sequential(
      [
        layers.InputLayer(input_shape),
        base,
        layers.Dropout(DROPOUT),
        layers.Dense(16, "relu", kernel_regularizer="l2"),
        layers.Dense(num_classes),
      ]
    )
  """
)
_DATA = {"num_domains": 3, "max_examples_per_domain": 40}
_FLAGS = """
  --algorithm=fed_avg --dataset=rotated_digits --num_domains=3
  --max_examples_per_domain=40 --num_clients=2 --batch_size=8 --local_steps=2
  --optimizer=adam --learning_rate=0.01 --evaluate_every=1 --noprogress
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """Returns `model(dropout)`: the flag of a model."""
  folder = tmp_path_factory.mktemp("models")

  def write(dropout):
    path = folder / f"dropout_{dropout}.py"
    path.write_text(_MODEL.replace("DROPOUT", str(dropout)))
    return f"--model={path}:build"

  return write


@pytest.fixture(scope="module")
def finished(model, run_in, start_binary, tmp_path_factory):
  """Two rounds at once in a process of their own, and here in two halves.
  And one with other dropout. Gives the bytes of the first, and the others.
  """
  folder = tmp_path_factory.mktemp("runs")
  flags = _FLAGS, model(0.5), f"--output_dir={folder / 'process'} --rounds=2"
  given = "evolving", _FLAGS
  with start_binary("evolving", flags) as process:
    half = folder / "halves"
    run_in(half, *given, model(0.5), "--rounds=1", errors="")
    again = "--rounds=2 --resume --save_model"
    halves = run_in(half, *given, model(0.5), again, errors="")
    other = run_in(folder / "other", *given, model(0.25), "--rounds=1")
    output, errors = process.communicate()
  assert (process.returncode, errors) == (0, ""), output
  return (folder / "process" / "metrics.csv").read_bytes(), halves, other


@pytest.mark.slow
class TestRun:
  def test_has_the_same_bits_and_depends_on_the_dropout(self, finished):
    expected, halves, other = finished
    assert expected.count(b"\n") == 1 + 2
    assert (halves.folder / "metrics.csv").read_bytes() == expected
    assert halves.rows[0]["train_loss"] != other.rows[0]["train_loss"]

  def test_leaves_a_model_that_predicts_as_it_was_measured(self, finished):
    _, halves, _ = finished
    (path,) = (halves.folder / "model").rglob("model.json")
    dataset = evolving_data.load_evolving("rotated_digits", seed=0, **_DATA)
    clients = evolving_data.assemble_clients(dataset, num_clients=2, seed=0)
    x, y = (
      np.concatenate(
        [
          getattr(client.test, name)[-client.test.domain_sizes[-1] :]
          for client in clients
        ]
      )
      for name in ("x", "y")
    )
    logits = tff_shift.load(path.parent).predict(x).numpy()
    # It is not one class, which would be right now and then.
    assert len(set(logits.argmax(axis=1))) > 1
    (run,) = halves.runs
    assert 100 * np.mean(logits.argmax(axis=1) == y) == pytest.approx(
      run["metrics"]["server_accuracy"]["seeds"][0], rel=1e-6
    )

  def test_another_frozen_base_is_refused_when_it_resumes(
    self, finished, model, run_in, monkeypatch
  ):
    # As if Keras drew the base anew.
    monkeypatch.setenv("SEED_OF_BASE", "1")
    given = "evolving", _FLAGS, model(0.5), "--rounds=3 --resume"
    ended = run_in(finished[1].folder, *given, code=2)
    (line,) = ended.errors.splitlines()
    assert "--frozen weights of --model (SHA-256) was" in line
