"""Tests of pre-training: real training, early stopping, and the cache."""

import dataclasses
import os
import pathlib
import shutil
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import keras_models
from tests.fixtures import trees
from tests.fixtures.refusals import refused
from tff_shift.data import datasets
from tff_shift.models import input_scaling
from tff_shift.models import split_model
from tff_shift.models.networks import mlp
from tff_shift.simulation import pretraining
from tff_shift.simulation.pretraining_hparams import PretrainingHParams


def build_model(width=16):
  return mlp.build(
    (28, 28, 1), 10, width=width, head_width=8, input_dtype=tf.uint8
  )


MODEL = build_model()


def make_digits():
  """700 training examples and 300 others."""
  source = datasets.load("digits")
  order = np.random.default_rng(0).permutation(len(source.y))
  parts = order[:700], order[700:1000]
  return [(source.x[part], source.y[part]) for part in parts]


DIGITS = make_digits()
# 24 training examples and 10 others.
FEW = [
  (x[:size], y[:size]) for (x, y), size in zip(DIGITS, (24, 10), strict=True)
]


def pretrain(hparams, data=FEW, **options):
  return pretraining.pretrain(MODEL, *data, hparams, **{"seed": 0} | options)


def cross_entropies(logits, y):
  """The loss of each example, with NumPy."""
  logits = np.float64(logits)
  return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]


class TestTraining:
  @pytest.fixture(scope="class")
  def run(self):
    epochs = []
    hparams = PretrainingHParams(max_epochs=25, patience=2, learning_rate=5e-3)
    pretrained = pretrain(hparams, DIGITS, seed=1, on_epoch=epochs.append)
    return pretrained, epochs, hparams

  @pytest.mark.slow
  def test_digits_are_learned(self, run):
    pretrained, epochs, _ = run
    assert pretrained.validation_accuracy > 85
    assert epochs[-1].training_loss < 0.2 * epochs[0].training_loss
    assert [epoch.number for epoch in epochs] == list(
      range(1, pretrained.num_epochs + 1)
    )

  @pytest.mark.slow
  def test_result_is_the_epoch_of_the_smallest_validation_loss(self, run):
    pretrained, epochs, _ = run
    _, (_, y) = DIGITS
    best = min(epochs, key=lambda epoch: epoch.validation_loss)
    logits = pretrained.validation_logits
    assert pretrained.best_epoch == best.number
    assert pretrained.validation_accuracy == best.validation_accuracy
    np.testing.assert_array_equal(pretrained.validation_y, y)
    assert logits.shape == (300, 10)
    assert logits.dtype == np.float32
    assert pretrained.validation_accuracy == pytest.approx(
      100 * np.mean(logits.argmax(1) == y), rel=1e-12
    )
    assert cross_entropies(logits, y).mean() == pytest.approx(
      best.validation_loss, rel=1e-5
    )

  def test_training_ends_at_the_first_run_of_bad_epochs(self, run):
    pretrained, epochs, hparams = run
    losses = [epoch.validation_loss for epoch in epochs]
    smallest = np.minimum.accumulate(losses)
    # An epoch is a good one if it is below all before it.
    good = [True, *(smallest[1:] < smallest[:-1])]
    assert good[-hparams.patience :] == [False] * hparams.patience
    assert not any(
      good[i : i + hparams.patience] == [False] * hparams.patience
      for i in range(len(good) - hparams.patience)
    )
    assert pretrained.num_epochs < hparams.max_epochs


class Trained(NamedTuple):
  """Trained once for several tests, with what it left in its cache."""

  pretrained: pretraining.Pretrained
  num_epochs: int
  cache: pathlib.Path

  HPARAMS = PretrainingHParams(max_epochs=2, batch_size=8)
  SEED = 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  cache, epochs = tmp_path_factory.mktemp("trained") / "cache", []
  pretrained = pretrain(
    Trained.HPARAMS,
    seed=Trained.SEED,
    cache_dir=cache,
    on_epoch=epochs.append,
  )
  return Trained(pretrained, len(epochs), cache)


@pytest.mark.slow
def test_refit_trains_on_all_examples_for_the_chosen_epochs(tmp_path):
  everything = tuple(map(np.concatenate, zip(*FEW, strict=True)))
  hparams = PretrainingHParams(max_epochs=4, patience=1, learning_rate=0.02)
  first = pretrain(hparams, seed=1, cache_dir=tmp_path)
  refit = pretrain(hparams, seed=1, refit=everything, cache_dir=tmp_path)
  # What was held out is predicted by a model that was not trained on it.
  np.testing.assert_array_equal(
    refit.validation_logits, first.validation_logits
  )
  assert refit.best_epoch == first.best_epoch
  # The last of as many epochs, whatever their loss.
  epochs = []
  by_hand = pretraining.pretrain(
    MODEL,
    everything,
    # Its loss falls with every epoch: the last one is the best.
    everything,
    dataclasses.replace(hparams, max_epochs=first.best_epoch, patience=9),
    seed=1,
    on_epoch=epochs.append,
  )
  assert by_hand.best_epoch == first.best_epoch == len(epochs)
  assert trees.bits(refit.weights) == trees.bits(by_hand.weights)
  assert trees.bits(refit.weights) != trees.bits(first.weights)
  cached = pretrain(hparams, seed=1, refit=everything, cache_dir=tmp_path)
  assert trees.bits(cached.weights) == trees.bits(refit.weights)
  assert len(list(tmp_path.glob("*.npz"))) == 2


@pytest.mark.slow
def test_seed_changes_the_order_of_the_examples(trained):
  # Equal initial weights.
  start = pretraining.with_pretrained(MODEL, trained.pretrained)
  one, other = (
    pretraining.pretrain(start, *FEW, Trained.HPARAMS, seed=seed)
    for seed in (1, 2)
  )
  assert trees.bits(one.weights) != trees.bits(other.weights)


@pytest.mark.slow
def test_epoch_goes_on_from_the_weights_of_the_one_before():
  train, _ = FEW
  epochs = []
  # With one batch of all examples, the loss of a step is that of the weights
  # before it, which is what the epoch before found on the same examples.
  hparams = PretrainingHParams(
    max_epochs=4, batch_size=24, optimizer="sgd", learning_rate=0.1
  )
  pretrain(hparams, (train, train), on_epoch=epochs.append)
  np.testing.assert_allclose(
    [epoch.training_loss for epoch in epochs[1:]],
    [epoch.validation_loss for epoch in epochs[:-1]],
    rtol=1e-5,
  )
  losses = [epoch.validation_loss for epoch in epochs]
  assert losses == sorted(losses, reverse=True)
  assert losses[-1] < losses[0]


@pytest.mark.slow
class TestEarlyStopping:
  def test_weights_that_do_not_move_stop_after_epochs_in_orders_of_their_own(
    self, run_in_graph
  ):
    (x, y), validation = FEW
    x, y = x[:3], y[:3]
    hparams = PretrainingHParams(
      max_epochs=99,
      patience=8,
      batch_size=2,
      optimizer="sgd",
      learning_rate=1e-30,
    )
    epochs = []
    pretrained = pretrain(hparams, ((x, y), validation), on_epoch=epochs.append)
    assert (pretrained.num_epochs, pretrained.best_epoch) == (9, 1)
    # Two batches of two for three examples: all once, and one of them, at
    # random, once more. The weights stay as they are.
    losses = cross_entropies(
      run_in_graph(MODEL.predict, pretrained.weights, x), y
    )
    possible = (losses.sum() + losses) / 4
    found = [
      np.flatnonzero(np.isclose(epoch.training_loss, possible, rtol=1e-6))
      for epoch in epochs
    ]
    assert all(len(each) == 1 for each in found)
    assert len({int(each[0]) for each in found}) > 1

  def test_best_weights_are_kept_not_the_last(self):
    train, (x, y) = FEW
    # Whoever learns the training data gets worse at these.
    wrong = x, (y + 1) % 10
    hparams = PretrainingHParams(patience=3, learning_rate=1e-2, batch_size=8)
    stopped = pretrain(hparams, (train, wrong))
    assert stopped.num_epochs == stopped.best_epoch + 3
    until_best = pretrain(
      dataclasses.replace(hparams, max_epochs=stopped.best_epoch),
      (train, wrong),
    )
    assert trees.bits(stopped.weights) == trees.bits(until_best.weights)
    assert trees.bits(stopped.validation_logits) == trees.bits(
      until_best.validation_logits
    )


class _Again(Exception):  # noqa: N818 (it is a sign)
  @classmethod
  def train(cls, *_):
    raise cls


@pytest.mark.slow
class TestCache:
  @pytest.fixture
  def pretrain(self, trained, tmp_path):
    """Returns `pretrain(model)`: the result and the number of epochs run.

    The cache is a copy of what `trained` has left.
    """
    shutil.copytree(trained.cache, tmp_path / "cache")

    def pretrain(model):
      epochs = []
      pretrained = pretraining.pretrain(
        model,
        *FEW,
        Trained.HPARAMS,
        seed=Trained.SEED,
        cache_dir=tmp_path / "cache",
        on_epoch=epochs.append,
      )
      return pretrained, len(epochs)

    return pretrain

  def test_second_call_does_not_train(self, trained, pretrain):
    assert trained.num_epochs == 2
    # Built anew, as another process would.
    cached, num_epochs = pretrain(build_model())
    assert num_epochs == 0
    assert trees.bits(cached) == trees.bits(trained.pretrained)
    assert type(cached.weights) is type(trained.pretrained.weights)
    key = pretraining.cache_key(MODEL, *FEW, Trained.HPARAMS, seed=Trained.SEED)
    assert os.listdir(trained.cache) == [f"pretrained-{key}.npz"]
    with np.load(trained.cache / f"pretrained-{key}.npz") as arrays:
      assert set(tf.nest.flatten(MODEL.weight_names())) < set(arrays)

  def test_folder_in_the_place_of_a_result_costs_no_epochs(
    self, pretrain, tmp_path, monkeypatch
  ):
    (path,) = (tmp_path / "cache").iterdir()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(pretraining, "_train", _Again.train)
    with pytest.raises(_Again):
      pretrain(MODEL)
    path.unlink()
    path.mkdir()
    with refused("is a folder; it must be a file"):
      pretrain(MODEL)


class TestCacheKey:
  hparams = PretrainingHParams()

  @pytest.fixture(scope="class")
  def key(self):
    return self.key_of(MODEL, *FEW)

  def key_of(self, model, train, validation, hparams=hparams, seed=0):
    return pretraining.cache_key(model, train, validation, hparams, seed=seed)

  @pytest.mark.slow
  def test_key_does_not_depend_on_what_was_traced_before(self, key):
    build_model(width=5)
    assert self.key_of(build_model(), *FEW) == key
    assert len(key) == 64

  @pytest.mark.slow
  @pytest.mark.parametrize("field", dataclasses.fields(PretrainingHParams))
  def test_key_depends_on_every_hyperparameter(self, field, key):
    if field.name == "optimizer":
      changed = "sgd"
    else:
      changed = field.default + type(field.default)(1)
    hparams = dataclasses.replace(self.hparams, **{field.name: changed})
    assert self.key_of(MODEL, *FEW, hparams) != key

  @pytest.mark.slow
  def test_key_depends_on_the_data(self, key):
    (x, y), (other_x, other_y) = FEW
    changed_x, changed_other_x = x.copy(), other_x.copy()
    changed_x[-1, 5, 5] ^= 1
    changed_other_x[-1, 5, 5] ^= 1
    keys = {
      key,
      self.key_of(MODEL, (changed_x, y), (other_x, other_y)),
      self.key_of(MODEL, (x, (y + 1) % 10), (other_x, other_y)),
      self.key_of(MODEL, (x, y), (changed_other_x, other_y)),
      self.key_of(MODEL, (x, y), (other_x, (other_y + 1) % 10)),
      self.key_of(MODEL, (other_x, other_y), (x, y)),
    }
    assert len(keys) == 6

  @pytest.mark.slow
  def test_key_depends_on_seed_and_versions(self, key, monkeypatch):
    keys = {key, self.key_of(MODEL, *FEW, seed=1)}
    monkeypatch.setattr(pretraining, "FORMAT", pretraining.FORMAT + 1)
    keys.add(self.key_of(MODEL, *FEW))
    monkeypatch.setattr(tf, "__version__", "0.0.0")
    keys.add(self.key_of(MODEL, *FEW))
    assert len(keys) == 4

  @pytest.mark.slow
  def test_key_depends_on_the_model(self, key):
    weights = {
      name: np.zeros(shape, np.float32)
      for name, shape in zip(
        tf.nest.flatten(MODEL.weight_names()),
        [*MODEL.backbone.shapes, *MODEL.head.shapes],
        strict=True,
      )
    }
    others = [
      build_model(width=12),
      dataclasses.replace(MODEL, name="other"),
      split_model.with_weights(MODEL, weights),
      # Leaves no trace in the weights.
      split_model.with_input_scaling(MODEL, input_scaling.MINUS_ONE_ONE),
    ]
    keys = [self.key_of(other, *FEW) for other in others]
    assert len({key, *keys}) == 5

  def test_types_of_numpy_are_cast_first(self, key):
    as_numpy_has_them = [(np.int64(x), np.int64(y)) for x, y in FEW]
    assert self.key_of(MODEL, *as_numpy_has_them) == key


class TestErrors:
  @pytest.mark.slow
  def test_loss_that_is_not_finite_names_the_learning_rate(self):
    hparams = PretrainingHParams(optimizer="sgd", learning_rate=1e30)
    with refused(r"learning_rate=1e\+30"):
      pretrain(hparams)

  @pytest.mark.parametrize(
    "change, message",
    [
      (lambda x, y: (np.float32(x), y), "to become uint8, got float32"),
      (lambda x, y: (x[:0], y[:0]), "at least one"),
      (lambda x, y: (x, y + 9), r"must lie in 0\.\.9"),
    ],
  )
  def test_data_that_do_not_fit_the_model_are_refused(self, change, message):
    train, validation = FEW
    for name, data in (
      ("training", (change(*train), validation)),
      ("validation", (train, change(*validation))),
    ):
      with refused(f"^. of the {name} .*{message}"):
        pretrain(PretrainingHParams(), data)

  def test_hyperparameter_that_is_not_allowed_is_refused(self):
    with refused("max_epochs=0"):
      pretrain(PretrainingHParams(max_epochs=0))


@pytest.mark.slow
def test_running_statistics_are_pretrained(tmp_path):
  """Inputs that are normalised first, each epoch one batch of all examples."""
  layers = tf.keras.layers
  model = keras_models.split(
    (28, 28, 1),
    lambda: [layers.Flatten(), layers.BatchNormalization(momentum=0.5)],
    lambda: [layers.Dense(10)],
    tf.uint8,
  )
  hparams = PretrainingHParams(max_epochs=3, patience=3, batch_size=24)
  found = pretraining.pretrain(model, *FEW, hparams, seed=0, cache_dir=tmp_path)
  mean, variance = found.statistics.values()
  x = np.float64(FEW[0][0]).reshape(24, -1) / 255
  left = 0.5**found.best_epoch
  np.testing.assert_allclose(mean, (1 - left) * x.mean(0), atol=1e-6)
  np.testing.assert_allclose(
    variance, left + (1 - left) * x.var(0), rtol=1e-5, atol=1e-6
  )
  again = pretraining.pretrain(model, *FEW, hparams, seed=0, cache_dir=tmp_path)
  trained = pretraining.with_pretrained(model, again)
  for name, value in found.statistics.items():
    np.testing.assert_array_equal(trained.statistics[name], value)
  # What was kept to choose the epoch are predictions with them.
  np.testing.assert_allclose(
    trained.predict(trained.initial_weights(np.int32([0, 0])), FEW[1][0]),
    found.validation_logits,
    rtol=1e-5,
    atol=1e-5,
  )


def test_frozen_weights_are_used_and_are_no_constants_of_a_graph(monkeypatch):
  generator = np.random.default_rng(0)
  base = generator.normal(size=(200, 300)).astype(np.float32)
  layers = tf.keras.layers
  frozen = layers.Dense(
    300,
    use_bias=False,
    kernel_initializer=tf.keras.initializers.Constant(base),
    trainable=False,
  )
  model = keras_models.split(
    (200,),
    lambda: [frozen, layers.Dense(5, use_bias=False)],
    lambda: [layers.Dense(2)],
  )
  frozen_weights = []
  with_frozen = split_model.SplitModel.with_frozen
  monkeypatch.setattr(
    split_model.SplitModel,
    "with_frozen",
    lambda model, weights: (
      frozen_weights.append(weights) or with_frozen(model, weights)
    ),
  )
  x = generator.normal(size=(8, 200)).astype(np.float32)
  y = np.arange(8) % 2
  result = pretraining.pretrain(
    model, (x, y), (x, y), PretrainingHParams(max_epochs=1), seed=0
  )
  (middle,), (kernel, bias) = result.weights
  np.testing.assert_allclose(
    result.validation_logits,
    x @ base @ middle @ kernel + bias,
    rtol=1e-4,
    atol=1e-4,
  )
  # Arguments of the graph: a constant may be too large for it.
  (tensor,) = tf.nest.flatten(frozen_weights)
  assert tf.is_symbolic_tensor(tensor) and tensor.shape == base.shape
