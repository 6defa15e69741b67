"""Tent, EATA and SAR by hand, beside NumPy, and their limits."""

import dataclasses

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import keras_models
from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift import models
from tff_shift.algorithms import tent
from tff_shift.algorithms.parts import fisher_information
from tff_shift.learning import work

layers = tf.keras.layers
HParams = tent.HParams
SEED = np.int32([1, 2])
SMALL = {"rtol": 0, "atol": 1e-6}
# The features before normalisation.
X = np.float32([[1, 2, 3, 6], [0, 1, 0, 3]])
KERNEL = np.float32([[1, 0], [0, 1], [1, 0], [0, 0.5]])


def logits_of(scale, shift):
  """Of the examples of `X`, in float64."""
  x = np.float64(X)
  centred = x - x.mean(axis=1, keepdims=True)
  normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-3)
  return (normed * scale + shift) @ np.float64(KERNEL)


def entropies_of(scale, shift):
  p = scipy.special.softmax(logits_of(scale, shift), axis=1)
  return scipy.stats.entropy(p, axis=1)


START = np.ones(4), np.zeros(4)


def step(oracle, weights, loss):
  """A step down the gradient of the loss."""
  return trees.add(weights, oracle.gradient(loss, weights), -0.1)


@pytest.fixture(scope="module")
def hand_model():
  """Group normalisation with one group, then a linear layer."""
  keras_model = keras_models.sequential(
    (4,),
    layers.GroupNormalization(groups=1, epsilon=1e-3, name="norm"),
    layers.Dense(2, use_bias=False, name="last"),
  )
  keras_model.layers[-1].set_weights([KERNEL])
  return models.from_keras(keras_model, initial="given")


@pytest.fixture(scope="module")
def stream(make_adapting_client):
  """A client whose stream is `X`, and whose labelled examples too."""
  return make_adapting_client(0, 2, 2)._replace(
    x=X, stream_x=X, confusion=np.eye(2, dtype=np.float32)
  )


@pytest.fixture(scope="module")
def adapt(run_in_graph, hand_model, stream):
  """Returns `adapt(hparams, number)`, after some batches."""

  def adapt(hparams, number=1, data=stream):
    functions = tent.make(hand_model, hparams)
    weights = functions.initial_weights(SEED)
    memory = run_in_graph(functions.initial_memory, SEED)
    losses = []
    for _ in range(number):
      weights, memory, loss = run_in_graph(
        functions.adapt, weights, memory, data
      )
      losses.append(loss)
    return weights, memory, losses

  return adapt


def sgd(**options):
  return HParams(optimizer="sgd", learning_rate=0.1, **options)


@pytest.mark.slow
class TestTent:
  @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
  def test_moments_are_kept_from_batch_to_batch(
    self, adapt, compare, optimizer
  ):
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    hparams = HParams(optimizer=optimizer, learning_rate=0.1, **momentum)
    one_by_one, memory, losses = adapt(hparams, 3)
    together, same, (loss,) = adapt(
      dataclasses.replace(hparams, adaptation_steps=3)
    )
    assert compare.equal_bits((one_by_one, memory), (together, same))
    assert_allclose(np.mean(losses), loss, rtol=1e-6)

  def test_two_steps_of_adam_beside_numpy(self, adapt, oracle):
    (scale, shift), _, _ = adapt(HParams(learning_rate=0.1), 2)
    weights, first, second = START, 0.0, 0.0
    for step in (1, 2):
      gradient = np.array(
        oracle.gradient(lambda w: np.mean(entropies_of(*w)), weights)
      )
      first = 0.9 * first + 0.1 * gradient
      second = 0.999 * second + 0.001 * gradient**2
      rate = 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
      weights = tuple(
        np.array(weights) - rate * first / (np.sqrt(second) + 1e-7)
      )
    assert_allclose((scale, shift), weights, rtol=0, atol=2e-5)

  @pytest.mark.parametrize("rule", ["tent", "eata", "sar"])
  def test_batch_of_no_examples_changes_nothing(self, adapt, stream, rule):
    weights, memory, (loss,) = adapt(
      sgd(rule=rule, momentum=0.9), data=stream._replace(stream_x=X[:0])
    )
    assert_array_equal(weights, START)
    assert loss == 0
    assert np.all(np.isfinite(trees.leaves(memory)[0]))


def test_eata_uncertain_and_known_examples_are_left_out():
  log_p = np.log(np.float32([[0.98, 0.02], [0.55, 0.45], [0.02, 0.98]]))
  weights, mean = tent.choose_certain_and_new(
    log_p, tf.constant([1.0, 0.0]), 0.3, 0.5
  )
  # The first is known, the second uncertain.
  assert (weights.numpy() > 0).tolist() == [False, False, True]
  assert_allclose(mean, [0.9 + 0.002, 0.098], rtol=1e-5)
  nothing, kept = tent.choose_certain_and_new(
    log_p[:2], tf.constant([1.0, 0.0]), 0.3, 0.5
  )
  assert not nothing.numpy().any()
  assert_array_equal(kept, [1.0, 0.0])


@pytest.mark.slow
def test_eata_step_beside_numpy(adapt, oracle):
  """The anchor pulls in the second step; both examples are certain enough."""
  hparams = sgd(
    rule="eata", entropy_margin=1.0, similarity_margin=1.1, fisher_weight=30.0
  )
  weights, memory, _ = adapt(hparams, 2)

  def own_loss(w):
    """The cross-entropy with the predicted classes: all logits positive."""
    logits = logits_of(*w)
    return np.mean(scipy.special.logsumexp(logits, axis=1) - logits.max(1))

  fisher = np.square(oracle.gradient(own_loss, START))
  assert_allclose(memory.rule.fisher, fisher, **SMALL)
  now = START
  for _ in range(2):
    factors = np.exp(np.log(2) - entropies_of(*now))

    def loss(w, factors=factors):
      anchor = np.sum(fisher * np.square(np.subtract(w, START)))
      return np.mean(factors * entropies_of(*w)) + 30.0 * anchor

    now = step(oracle, now, loss)
  assert_allclose(weights, now, rtol=0, atol=1e-5)
  assert memory.rule.num_batches == 2


@pytest.mark.slow
def test_eata_without_chosen_examples_no_step_is_taken(adapt):
  (moved, memory, _), (weights, same, _) = (
    adapt(
      sgd(
        rule="eata", momentum=0.9, similarity_margin=1.1, entropy_margin=margin
      ),
      number,
    )
    for margin, number in ((1.0, 1), (0.0, 2))
  )
  assert np.any(moved[0] != 1)
  assert_array_equal(weights, START)
  assert trees.largest(same.moments) == 0 < trees.largest(memory.moments)


@pytest.mark.slow
def test_sar_step_beside_numpy(adapt, oracle):
  """The gradient is at w + rho g / |g|; the mean loss is that of there."""
  hparams = sgd(rule="sar", entropy_margin=1.0, rho=0.4, reset_entropy=0.0)
  weights, memory, losses = adapt(hparams, 2)

  def loss(w):
    return np.mean(entropies_of(*w))

  now, mean, expected = START, None, []
  for _ in range(2):
    slopes = np.array(oracle.gradient(loss, now))
    moved = tuple(np.array(now) + 0.4 * slopes / np.linalg.norm(slopes))
    expected.append(loss(now))
    mean = loss(moved) if mean is None else 0.9 * mean + 0.1 * loss(moved)
    now = trees.add(now, oracle.gradient(loss, moved), -0.1)
  assert_allclose(weights, now, rtol=0, atol=1e-5)
  assert_allclose(losses, expected, rtol=1e-5)
  assert_allclose(memory.rule.loss, mean, rtol=1e-5)


@pytest.mark.slow
def test_sar_only_certain_examples_count_at_both_points(adapt, oracle):
  """The margin is between the entropies of the two examples."""
  first, second = entropies_of(*START)
  assert first != second
  margin = (first + second) / 2
  certain = int(second < margin)
  weights, _, (loss,) = adapt(
    sgd(
      rule="sar",
      entropy_margin=float(margin / np.log(2)),
      rho=1e-3,
      reset_entropy=0.0,
    )
  )
  assert_allclose(loss, min(first, second), rtol=1e-5)
  expected = step(oracle, START, lambda w: entropies_of(*w)[certain])
  assert_allclose(weights, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_sar_collapsed_model_is_reset_with_its_memory(adapt):
  hparams = sgd(rule="sar", momentum=0.9, entropy_margin=1.0)
  # The threshold for two classes is above every entropy here.
  weights, memory, _ = adapt(dataclasses.replace(hparams, reset_entropy=9.0))
  assert_array_equal(weights, START)
  assert memory.rule.loss == -1
  assert trees.largest(memory.moments) == 0
  # And 0.2 ln 2 / ln 1000 = 0.02 is not.
  weights, memory, _ = adapt(hparams)
  assert np.any(weights[0] != 1) and memory.rule.loss > 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
  "ratio, is_reset", [(1 - 5e-5, False), (1 + 5e-5, True)]
)
def test_sar_threshold_is_that_of_a_thousand_classes(adapt, ratio, is_reset):
  hparams = sgd(rule="sar", entropy_margin=1.0, reset_entropy=0.0)
  _, memory, _ = adapt(hparams)
  threshold = float(memory.rule.loss) * np.log(1000) / np.log(2) * ratio
  _, memory, _ = adapt(dataclasses.replace(hparams, reset_entropy=threshold))
  assert (memory.rule.loss == -1) == is_reset


@pytest.mark.slow
def test_sar_without_distance_and_margin_it_is_tent(adapt):
  expected, moments, _ = adapt(sgd(momentum=0.9), 3)
  weights, memory, _ = adapt(
    sgd(
      rule="sar", momentum=0.9, entropy_margin=10.0, rho=0.0, reset_entropy=0.0
    ),
    3,
  )
  assert_allclose(weights, expected, **SMALL)
  assert_allclose(
    trees.leaves(memory.moments), trees.leaves(moments.moments), **SMALL
  )


@pytest.mark.slow
def test_scales_and_shifts_of_every_normalisation_adapt():
  model = models.build(
    "residual_cnn", input_shape=(8, 8, 3), num_classes=10, input_dtype=tf.uint8
  )
  columns = zip(
    trees.leaves(tent.adapted_weights(model, HParams())),
    trees.leaves(model.weight_names()),
    (*model.backbone.shapes, *model.head.shapes),
    strict=True,
  )
  adapted = [(name, shape) for is_in, name, shape in columns if is_in]
  assert all("normalization" in name for name, _ in adapted)
  assert sum(np.prod(shape) for _, shape in adapted) == 1376
  # Two linear layers, then the fourth convolution with its normalisation.
  model = models.build(
    "cnn", input_shape=(28, 28, 1), num_classes=10, input_dtype=tf.uint8
  )
  chosen = tent.adapted_weights(model, HParams(excluded_layers=3))
  assert sum(trees.leaves(chosen)) == 6


# The batch normalises, in the step and in predictions.
@pytest.fixture(scope="module")
def run(build, normalized_model, make_adapting_client, make_client):
  """Returns `run(**options)`: the stream, adapted weights, predictions."""

  def run(size=30, **options):
    data = make_adapting_client(0, 6, size)
    functions = build(sgd(**options), model=normalized_model)
    state = functions.initial_client_state(SEED, ())
    state = functions.train_client((), state, data, 0).client_state
    examples = make_client(0, [size])._replace(x=data.stream_x)
    return (
      data.stream_x,
      state.weights,
      functions.predict_as_client((), state, data, examples),
    )

  return run


@pytest.fixture(scope="module")
def with_adapted(normalized_weights):
  """Returns `with_adapted(pair)`: weights with other scales and shifts."""
  rest = normalized_weights.backbone[:2]
  return lambda pair: normalized_weights._replace(backbone=(*rest, *pair))


@pytest.mark.slow
@pytest.mark.parametrize("size", [30, 300])
def test_batch_normalization_step_and_prediction_beside_numpy(
  run, normalized_weights, with_adapted, oracle, size
):
  """300 examples are more than models take at a time."""
  x, weights, logits = run(size)

  def predict(pair):
    return oracle.normalize(with_adapted(pair), x)

  expected = step(
    oracle,
    normalized_weights.backbone[2:],
    lambda pair: oracle.entropy(predict(pair)),
  )
  assert_allclose(weights, expected, rtol=0, atol=1e-5)
  assert_allclose(logits, predict(expected), rtol=0, atol=1e-3)


def test_batch_normalization_running_statistics_can_be_used_instead(
  run, normalized_model, with_adapted, oracle
):
  x, weights, logits = run(normalize_by="source")
  moments = [*normalized_model.statistics.values()]
  expected = oracle.normalize(with_adapted(weights), x, moments)
  assert_allclose(logits, expected, rtol=0, atol=1e-4)


def test_batch_normalization_only_by_batch_it_predicts_batches(
  build, normalized_model, hand_model
):
  for model, normalize_by, is_by_batch in (
    (normalized_model, "batch", True),
    (normalized_model, "source", False),
    (hand_model, "batch", False),
  ):
    functions = build(HParams(normalize_by=normalize_by), model=model)
    assert functions.predicts_batches == is_by_batch


def test_fisher_information_of_batches(run_in_graph):
  """log p_0 = -softplus(-2 w x): batches of two and one example."""
  x = np.float32([1.0, 2.0, 3.0])

  def measure(weight, x):
    return fisher_information.of_own_labels(
      lambda w, part: tf.nn.log_softmax(tf.stack([w * part, -w * part], 1)),
      weight,
      x,
      2,
    )

  # The gradient of -log p_0 is -2 x / (1 + exp(2 w x)).
  slopes = -2 * x / (1 + np.exp(2 * 0.3 * x))
  expected = (np.mean(slopes[:2]) ** 2 + slopes[2] ** 2) / 2
  found = run_in_graph(measure, np.float32(0.3), x)
  assert_allclose(found, expected, rtol=1e-5)


@pytest.fixture(scope="module")
def fed_tent_round(start, hand_model):
  """Returns `run(name, *clients)`, a round from the same states."""

  def run(name, *data):
    hparams = algorithms.hparams(name, learning_rate=0.1)
    after = start(hparams, data, 1, model=hand_model)
    return after.server_state.weights, after.client_states

  return run


@pytest.mark.slow
@pytest.mark.parametrize(
  "options, expected",
  [({}, 1), ({"adaptation_steps": 3}, 3), ({"rule": "sar"}, 2)],
)
def test_gradients_of_a_round_are_counted(
  hand_model, stream, context, options, expected
):
  algorithm = algorithms.build(tent, hand_model, HParams(**options))
  assert work.gradients_of_round(algorithm, [stream]) == expected


@pytest.mark.slow
class TestFedTent:
  def test_one_client_alone_is_tent(self, fed_tent_round, stream, compare):
    shared, (memory,) = fed_tent_round("fed_tent", stream)
    _, (state,) = fed_tent_round("tent", stream)
    # The server adds the difference to what it had.
    assert_allclose(shared, state.weights, rtol=0, atol=1e-7)
    assert compare.equal_bits(memory, state.memory)

  def test_server_has_the_mean_weighted_by_examples(
    self, fed_tent_round, stream
  ):
    other = stream._replace(stream_x=np.float32([[3, 1, 0, -2]]))
    shared, _ = fed_tent_round("fed_tent", stream, other)
    alone = [fed_tent_round("fed_tent", each)[0] for each in (stream, other)]
    assert_allclose(
      shared, [(2 * a + b) / 3 for a, b in zip(*alone, strict=True)], **SMALL
    )
