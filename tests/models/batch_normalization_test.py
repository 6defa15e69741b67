"""Batch normalisation in models: Keras's numbers, and running statistics."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import trees
from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import assert_equal
from tests.fixtures.arrays import normal
from tests.fixtures.keras_models import randomized
from tests.fixtures.keras_models import sequential
from tests.fixtures.refusals import refused
from tff_shift import models
from tff_shift.learning import local_training
from tff_shift.learning.hyperparameters import LocalHParams
from tff_shift.models import modes
from tff_shift.models import split_model
from tff_shift.models.networks import residual_cnn

layers = tf.keras.layers
SEED = np.int32([1, 2])


def vectors():
  return sequential(
    (4,),
    layers.Dense(6),
    layers.BatchNormalization(name="norm", momentum=0.9),
    layers.Dense(3),
  )


def images():
  """Two layers of other settings, one without a scale."""
  return sequential(
    (6, 6, 2),
    layers.Conv2D(6, 3),
    layers.BatchNormalization(name="norm", scale=False, epsilon=0.1),
    layers.GlobalAveragePooling2D(),
    layers.BatchNormalization(name="second"),
    layers.Dense(3),
  )


def nested():
  return sequential(
    (4,),
    sequential((4,), layers.Dense(5), layers.BatchNormalization()),
    layers.Dense(3),
  )


def first_inputs(keras_model):
  """The inputs of a model, or of the model that is its first layer."""
  first = keras_model.layers[0]
  return (
    first.inputs if isinstance(first, tf.keras.Model) else keras_model.inputs
  )


@pytest.fixture(scope="module", params=[vectors, images, nested])
def compared(request):
  """A model of random weights, examples, and the numbers of Keras."""
  keras_model = randomized(request.param())
  x = normal(5, 5, *keras_model.input_shape[1:])
  evaluated = keras_model(x).numpy()
  model = models.from_keras(keras_model, initial="given")
  moments = []
  for layer in keras_model._flatten_layers():
    if isinstance(layer, layers.BatchNormalization):
      of_layer = tf.keras.Model(first_inputs(keras_model), layer.input)
      flat = np.float64(of_layer(x)).reshape(-1, layer.input.shape[-1])
      moments += [flat.mean(axis=0), flat.var(axis=0, ddof=1)]
  trained = keras_model(x, training=True).numpy()
  return model, x, evaluated, trained, moments


@pytest.mark.parametrize(
  "shape, expected",
  # The variance of 1, 2, 3, 6 is 3.5, and 14/3 without bias, as for images.
  [((4, 1), (0.3, 0.9 + 0.35)), ((4, 1, 1, 1), (0.3, 0.9 + 14 / 30))],
)
def test_one_step_by_hand(shape, expected):
  model = models.from_keras(
    sequential(
      shape[1:],
      layers.BatchNormalization(momentum=0.9, epsilon=1e-3, name="norm"),
      layers.Flatten(),
      layers.Dense(2, use_bias=False, kernel_initializer="ones"),
    )
  )
  x = np.float32([1, 2, 3, 6]).reshape(shape)
  weights = model.initial_weights(SEED)
  with (
    modes.with_statistics(model.statistics) as statistics,
    modes.training(lambda: tf.constant(SEED)),
  ):
    logits = model.predict(weights, x)
  assert_close(logits[:, 0], [-1.0688924, -0.5344462, 0, 1.6033385], atol=1e-5)
  assert_close([each[0] for each in statistics.values()], expected, 1e-6)
  # Evaluation example by example: mean 0 and variance 1 of the start.
  assert_close(
    model.predict(weights, x)[:, 0], x.ravel() / np.sqrt(1 + 1e-3), 1e-6
  )


def train(model, loss, num_steps=3, **options):
  """Trains by a loss of weights; returns the weights."""
  return local_training.train(
    lambda now, step, carry: (loss(now), carry),
    model.initial_weights(SEED),
    num_steps,
    LocalHParams(learning_rate=0.1),
    seed=SEED,
    **options,
  ).weights


@pytest.mark.slow
def test_second_gradient_of_a_step_moves_nothing():
  model = models.from_keras(randomized(vectors()), initial="given")
  x = normal(5, 5, 4)
  y = np.int32([0, 1, 2, 0, 1])

  def twice(gradient_at, trained):
    first = gradient_at(trained)
    gradient_at(tuple(w + 1.0 for w in trained))
    return first

  def trained(**options):
    with modes.with_statistics(model.statistics) as statistics:
      weights = train(
        model,
        lambda now: local_training.cross_entropy(model.predict(now, x), y),
        **options,
      )
      return weights, tuple(statistics.values())

  trees.assert_equal(trained(differentiate=twice), trained())


def test_without_statistics_to_move_training_normalises_by_those_there_are():
  """One step on scale and shift, by hand: the loss is sum(logits * slope)."""
  keras_model = randomized(
    sequential(
      (4,),
      layers.BatchNormalization(name="norm", epsilon=0.25),
      layers.Dense(3, use_bias=False),
    )
  )
  model = models.from_keras(keras_model, initial="given")
  x, slope = normal(6, 2, 5, 4)
  slope = slope[:, :3]
  weights = model.initial_weights(SEED)
  trained = train(
    model, lambda now: tf.reduce_sum(model.predict(now, x) * slope), 1
  )
  mean, variance = model.statistics.values()
  normed = (x - mean) / np.sqrt(variance + 0.25)
  of_features = slope @ np.transpose(weights.head[0])
  scale, shift = weights.backbone
  close = {"rtol": 1e-5, "atol": 1e-5}
  np.testing.assert_allclose(
    trained.backbone[0],
    scale - 0.1 * np.sum(of_features * normed, axis=0),
    **close,
  )
  np.testing.assert_allclose(
    trained.backbone[1], shift - 0.1 * np.sum(of_features, 0), **close
  )


@pytest.mark.slow
def test_by_batch_a_model_predicts_as_in_training_and_moves_nothing(compared):
  model, x, _, trained, _ = compared
  with modes.with_statistics(model.statistics) as statistics, modes.by_batch():
    found = model.predict(model.initial_weights(SEED), x)
    twice = model.predict(
      model.initial_weights(SEED), np.tile(x, (2, 1, 1, 1)[: x.ndim])
    )
  assert_close(found, trained, 1e-5, 1e-5)
  # A batch that is repeated has the same moments.
  assert_close(twice[5:], found, 1e-4, 1e-4)
  for name, value in model.statistics.items():
    assert_equal(statistics[name], value)


@pytest.mark.slow
def test_moments_are_observed_in_evaluation(compared):
  model, x, evaluated, _, expected = compared
  weights = model.initial_weights(SEED)
  # Also within a scope in which batches normalise themselves.
  with modes.by_batch(), modes.observing_moments() as moments:
    found = model.predict(weights, x)
  assert_equal(found, model.predict(weights, x))
  assert_close(found, evaluated, 1e-5, 1e-5)
  assert modes.observed_moments() is None
  assert moments.keys() == model.statistics.keys()
  trees.assert_close(list(moments.values()), expected, 1e-5, 1e-5)


def test_drawn_models_start_from_initial_statistics():
  model = models.from_keras(randomized(vectors()))
  mean, variance = model.statistics.values()
  assert_equal(mean, np.zeros(6))
  assert_equal(variance, np.ones(6))
  assert model.normalizers == split_model.SplitWeights(
    (False, False, True, True), (False, False)
  )


def test_statistics_can_be_given_with_the_weights(by_name):
  model = models.from_keras(vectors)
  values = by_name(model, model.initial_weights(SEED))
  with refused("norm/moving_mean' is missing"):
    split_model.with_weights(model, values)
  values["backbone/norm/moving_mean"] = np.full(6, 2.0)
  values["backbone/norm/moving_variance"] = np.full(6, -1.0)
  with refused("moving_variance' is a variance and has numbers below 0"):
    split_model.with_weights(model, values)
  values["backbone/norm/moving_variance"] = np.full(6, 4.0)
  given = split_model.with_weights(model, values)
  assert all(np.all(each > 1) for each in given.statistics.values())


@pytest.mark.slow
def test_a_keras_file_has_the_statistics(tmp_path):
  keras_model = randomized(vectors())
  x = normal(5, 5, 4)
  expected = keras_model(x)
  keras_model.save(tmp_path / "model.keras")
  model = split_model.load_weights(
    models.from_keras(vectors), tmp_path / "model.keras"
  )
  assert_close(model.predict(model.initial_weights(SEED), x), expected, 1e-5)


@pytest.mark.slow
class TestInPlaceOfGroups:
  def test_networks_keep_their_weights(self):
    model = residual_cnn.build(width=8)
    changed = models.with_batch_normalization(model)
    assert changed.weight_names() == model.weight_names()
    # Mean and variance for a scale and a shift.
    assert len(changed.statistics) == sum(changed.normalizers.backbone) > 0
    trees.assert_equal(
      changed.initial_weights(SEED), model.initial_weights(SEED)
    )
    layer = changed.backbone.source.keras_model.get_layer("stem_normalization")
    assert (layer.epsilon, layer.momentum) == (1e-5, 0.9)

  def test_model_without_groups_is_refused(self):
    with refused("has no group normalisation"):
      models.with_batch_normalization(models.from_keras(vectors))


def test_renormalisation_is_refused():
  keras_model = sequential(
    (4,), layers.BatchNormalization(renorm=True, name="norm"), layers.Dense(3)
  )
  with refused("layer 'norm' has renorm"):
    models.from_keras(keras_model)
