"""FedBN and FedAvg with batch normalisation, through the binary."""

import textwrap

import numpy as np
import pytest

import tff_shift
from tff_shift import models
from tff_shift.models import split_model

_MODEL = textwrap.dedent(
  """
  import tensorflow as tf

  layers = tf.keras.layers


  def build(input_shape, num_classes):
    return tf.keras.Sequential(
      [
        layers.InputLayer(input_shape),
        layers.Conv2D(4, 5, strides=4),
        layers.GroupNormalization(2, name="norm"),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(num_classes),
      ]
    )
  """
)
_FLAGS = """
  --dataset=rotated_digits --num_domains=3 --max_examples_per_domain=40
  --normalization=batch --num_clients=2 --batch_size=8 --local_steps=2
  --evaluate_every=1 --noprogress --algorithm=fed_avg,fed_bn
"""
_ONLINE = """
  --dataset=digits --shift=linear --normalization=batch --timesteps=2
  --num_clients=2 --samples_per_step=5 --initial_examples=6 --local_epochs=1
  --head_epochs=1 --max_pretraining_examples=100 --pretraining_epochs=1
  --save_model --save_clients=all --noprogress --algorithm=fed_ade,source
"""
_STATISTICS = "backbone/norm/moving_variance"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """The name of a model of the user's."""
  path = tmp_path_factory.mktemp("model") / "mine.py"
  path.write_text(_MODEL)
  return f"{path}:build"


@pytest.fixture(scope="module")
def finished(model, run_in, tmp_path_factory):
  """Two rounds at once, and in two parts; gives the folders by name."""
  folder = tmp_path_factory.mktemp("runs")
  for name, flags in (
    ("whole", "--rounds=2 --save_model --save_clients=all"),
    ("parts", "--rounds=1"),
    ("parts", "--rounds=2 --resume"),
  ):
    given = "evolving", _FLAGS, f"--model={model}", flags
    run_in(folder / name, *given, errors="")
  return folder


@pytest.mark.long
def test_statistics_of_pretraining_stay_while_a_model_adapts(
  model, run, tmp_path
):
  flags = f"--model={model}", f"--cache_dir={tmp_path / 'cache'}"
  run("online_adaptation", _ONLINE, *flags, errors="")
  (path,) = (tmp_path / "cache").glob("pretrained-*.npz")
  with np.load(path) as arrays:
    pretrained = arrays[_STATISTICS]
  assert np.any(pretrained != 1)
  for name in ("fed_ade", "source"):
    (path,) = (tmp_path / "run" / "model" / name).rglob("model.json")
    loaded = tff_shift.load(path.parent)
    x = np.full((2, *loaded.input_shape), 100, np.uint8)
    assert np.isfinite(loaded.predict_as(0, x)).all()


@pytest.mark.slow
class TestRun:
  @pytest.fixture
  def files(self, finished):
    """Returns `files(name)`: the weights of a model, which is loaded, too."""

    def read(algorithm):
      (path,) = (finished / "whole/model" / algorithm).rglob("weights.npz")
      with np.load(path) as arrays:
        return path, dict(arrays), tff_shift.load(path.parent)

    return read

  def test_has_the_same_bits_when_it_resumes(self, finished):
    expected = (finished / "whole" / "metrics.csv").read_bytes()
    assert expected.count(b"\n") == 1 + 2 * 2
    assert (finished / "parts" / "metrics.csv").read_bytes() == expected

  def test_statistics_of_clients_are_saved_and_used(self, files):
    _, arrays, loaded = files("fed_bn")
    # They are the clients' own, and so are scale and shift.
    assert _STATISTICS not in arrays
    x = np.zeros((1, *loaded.input_shape), np.uint8)
    for one, other in (
      (arrays[f"clients/{client}/{_STATISTICS}"] for client in (0, 1)),
      (loaded.predict_as(client, x).numpy() for client in (0, 1)),
    ):
      assert np.any(one != other)

  def test_another_run_starts_from_those_of_the_server(self, files, model):
    path, arrays, _ = files("fed_avg")
    assert np.any(arrays[_STATISTICS] != 1)
    built = models.with_batch_normalization(
      models.build(model, input_shape=(28, 28, 1), num_classes=10)
    )
    loaded = split_model.load_weights(built, path)
    for name, value in loaded.statistics.items():
      np.testing.assert_array_equal(value, arrays[name])
