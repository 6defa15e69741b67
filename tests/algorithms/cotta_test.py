"""CoTTA against NumPy: its steps, its augmentations and its limits."""

import dataclasses
import functools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tests.fixtures import trees
from tff_shift.algorithms import cotta
from tff_shift.learning import randomness
from tff_shift.models.networks import bi_lstm

pytestmark = pytest.mark.slow

RATE = 0.3
HPARAMS = cotta.HParams(
  optimizer="sgd",
  learning_rate=RATE,
  teacher_memory=0.9,
  confidence_threshold=0.0,
  restore_probability=0.0,
)
SEED = np.int32([3, 4])
STREAM = 9, 7


def changed(**changes):
  return dataclasses.replace(HPARAMS, **changes)


@pytest.fixture(scope="module")
def apart(weights):
  """A student and a teacher that differ from each other and the source."""
  student, teacher = (
    trees.add(weights, trees.normal(weights, seed, 0.3)) for seed in (0, 1)
  )
  return cotta.ClientState(student, teacher, ({},))


def step_by_hand(oracle, student, teacher, targets, x):
  def loss(current):
    p = oracle.softmax(oracle.predict(current, x))
    return -np.mean(np.sum(targets * np.log(p), axis=1))

  new, value = oracle.descend(student, [loss], RATE)
  return new, trees.mean(teacher, new, weights=[0.9, 0.1]), value


def test_round_two_steps_agree_with_the_oracle(
  build, client, apart, oracle, compare
):
  result = build(HPARAMS, adaptation_steps=2).train_client((), apart, client, 2)
  student, teacher, losses = apart.student, apart.teacher, []
  for _ in range(2):
    targets = oracle.softmax(oracle.predict(teacher, client.stream_x))
    student, teacher, loss = step_by_hand(
      oracle, student, teacher, targets, client.stream_x
    )
    losses.append(loss)
  compare.assert_close(result.client_state.student, student, 1e-5)
  compare.assert_close(result.client_state.teacher, teacher, 1e-5)
  assert_allclose(result.loss, np.mean(losses), rtol=1e-5)


@pytest.fixture(scope="module")
def augment(run_in_graph):
  """Returns `augment(x, seed, **changes)`."""

  @functools.cache
  def function_of(**changes):
    hparams = changed(**changes)
    return lambda x, seed: cotta.augment(x, seed, hparams)

  def augment(x, seed=SEED, **changes):
    return run_in_graph(function_of(**changes), x, np.int32(seed))

  return augment


# Of a teacher that averages over noisy features.
UNSURE = changed(
  confidence_threshold=1.1, num_augmentations=3, augmentation_noise=0.5
)


@pytest.fixture(scope="module")
def mean_logits(client, apart, augment, oracle):
  """Returns `mean_logits(x, *words)`: the teacher's, over three views."""

  def mean_logits(x, *words):
    seed = randomness.fold(client.seed, *words)
    views = [
      augment(x, randomness.fold(seed, number), augmentation_noise=0.5)
      for number in range(3)
    ]
    return np.mean(
      [oracle.predict(apart.teacher, view) for view in views], axis=0
    )

  return mean_logits


def test_a_step_towards_the_mean_over_augmentations(
  build, client, apart, mean_logits, oracle, compare, functions
):
  result = build(UNSURE).train_client((), apart, client, 2)
  purpose = randomness.Purpose.TRAIN
  targets = oracle.softmax(mean_logits(client.stream_x, purpose, 2, 0, 0))
  student, teacher, _ = step_by_hand(
    oracle, apart.student, apart.teacher, targets, client.stream_x
  )
  compare.assert_close(result.client_state.student, student, 1e-5)
  compare.assert_close(result.client_state.teacher, teacher, 1e-5)
  plain = functions.train_client((), apart, client, 2)
  difference = plain.client_state.student.head[0] - student.head[0]
  assert np.max(np.abs(difference)) > 1e-3


def test_the_source_decides_whether_a_batch_is_augmented(
  build, client, weights, apart, mean_logits, make_client, oracle
):
  examples = make_client(5, [7])
  confidence = (
    oracle.softmax(oracle.predict(weights, examples.x)).max(axis=1).mean()
  )
  plain = oracle.predict(apart.teacher, examples.x)
  averaged = mean_logits(examples.x, randomness.Purpose.TEST_TIME)
  assert np.max(np.abs(plain - averaged)) > 1e-2
  for margin, expected in ((-1e-4, plain), (1e-4, averaged)):
    functions = build(UNSURE, confidence_threshold=confidence + margin)
    assert functions.predicts_batches
    logits = functions.predict_as_client((), apart, client, examples)
    assert_allclose(logits, expected, atol=1e-5)


def test_weights_return_to_the_source_at_random(
  build, client, weights, apart, compare
):
  kept, some, other = (
    build(HPARAMS, restore_probability=probability)
    .train_client((), apart, client, round_num)
    .client_state
    for probability, round_num in ((0.0, 2), (0.3, 2), (0.3, 3))
  )
  # The teacher has learned from the student before.
  assert compare.equal_bits(some.teacher, kept.teacher)
  masks = []
  for state in (some, other):
    mask = []
    for own, free, first in trees.pairs(state.student, kept.student, weights):
      is_restored = own == first
      assert_array_equal(own, np.where(is_restored, first, free))
      mask.append(is_restored.ravel())
    masks.append(np.concatenate(mask))
  number = masks[0].size
  for mask in masks:
    # Five standard deviations.
    assert abs(mask.mean() - 0.3) < 5 * np.sqrt(0.21 / number)
  assert np.any(masks[0] != masks[1])


@pytest.mark.parametrize(
  "changes, is_teacher_still",
  [
    # A confident source, at the published optimizer, rate and restoration.
    ({"adaptation_steps": 3, "num_augmentations": 0}, True),
    ({"confidence_threshold": 2.0, "learning_rate": 0.0}, False),
    ({"confidence_threshold": 2.0, "restore_probability": 1.0}, False),
  ],
)
def test_the_student_stays_the_source_bit_for_bit(
  build, changes, is_teacher_still, client, weights, compare
):
  functions = build(cotta.HParams(**changes))
  state = functions.initial_client_state(client.seed, ())
  result = functions.train_client((), state, client, 2)
  assert compare.equal_bits(result.client_state.student, weights)
  if is_teacher_still:
    assert compare.equal_bits(result.client_state.teacher, weights)


@pytest.fixture(scope="module")
def images():
  generator = np.random.default_rng(2)
  return generator.integers(0, 256, (4, 12, 10, 3)).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_augmentations_images_of_a_batch_change_alike(
  channels, images, augment
):
  twins = images[[0, 0, 1], ..., :channels]
  found = [
    augment(twins, [seed, 1], augmentation_noise=0.0) for seed in range(3)
  ]
  for each in found:
    assert each.dtype == np.uint8
    assert_array_equal(each[0], each[1])
    assert np.any(each[0] != each[2])
  assert np.any(found[0] != found[1])


def test_augmentations_half_of_them_are_mirrored(augment):
  """A dark left half stays left, or comes to the right."""
  images = np.zeros((1, 16, 16, 1), np.uint8)
  images[:, :, 8:] = 255
  sides = []
  for seed in range(40):
    found = augment(images, [seed, 7])
    sides.append(found[..., :4, 0].mean() < found[..., 12:, 0].mean())
  # A fair coin is outside once in 100,000.
  assert 7 <= sum(sides) <= 33


def test_augmentations_affine_maps_are_similarities(run_in_graph):
  rows, columns = np.meshgrid(*[np.arange(24.0)] * 2, indexing="ij")
  images = np.float32(np.stack([rows, columns])[..., np.newaxis])
  found = {}

  def distort(x, seed):
    return cotta.distort(x, seed, 1.0)

  for seed in range(8):
    mapped = run_in_graph(distort, images, np.int32([seed, 9]))
    inner = mapped[:, 9:15, 9:15, 0]
    down, right = np.diff(inner, axis=1), np.diff(inner, axis=2)
    for slopes in (down, right):
      # Linear, up to the weak blur of nothing but a plane.
      assert np.ptp(slopes, axis=(1, 2)).max() < 1e-4
    (a, b), (c, d) = down.mean(axis=(1, 2)), right.mean(axis=(1, 2))
    assert_allclose([a, b], [d, -c], atol=1e-4)
    scale, angle = 1 / np.hypot(a, b), np.degrees(np.arctan2(b, a))
    assert 0.9 - 1e-4 <= scale <= 1.1 + 1e-4
    assert abs(angle) <= 15.01
    centre = mapped[:, 11:13, 11:13, 0].mean(axis=(1, 2)) - 11.5
    assert np.hypot(*centre) <= np.hypot(3, 3) / 0.9 + 1e-3
    found[round(angle, 3), round(scale, 3)] = centre
  assert len(found) == 8


def test_augmentations_colours_stay_within_their_amounts(run_in_graph):
  """A grey image keeps its colour; brightness and contrast do not clip."""
  images = np.full((1, 6, 6, 3), 0.5, np.float32)
  values = []

  def jitter(x, seed):
    return cotta.jitter(x, seed, 1.0)

  for seed in range(20):
    found = run_in_graph(jitter, images, np.int32([seed, 3]))
    assert np.ptp(found) < 1e-5
    values.append(found.mean())
  low, high = 0.5 * 0.6, 0.5 * 1.4
  assert min(values) >= low**1.3 - 1e-4
  assert max(values) <= high**0.7 + 1e-4
  assert np.ptp(values) > 0.1


def test_augmentations_without_amounts_images_stay(images, augment):
  found = augment(
    images,
    augmentation_scale=0.0,
    augmentation_flip=False,
    augmentation_noise=0.0,
  )
  assert_array_equal(found, images)


def test_augmentations_features_get_noise(augment):
  found = augment(np.zeros((500, 8), np.float32), augmentation_noise=0.2)
  assert_allclose(found.std(), 0.2, rtol=0.05)
  assert_allclose(found.mean(), 0, atol=0.01)


def test_augmentations_tokens_are_refused(refusal):
  model = bi_lstm.build(input_shape=(4,), vocabulary_size=9, width=1)
  message = refusal(cotta.build, model, HPARAMS)
  assert "cotta without --num_augmentations=0" in message
  assert "takes int32 [4]" in message
  cotta.build(model, changed(num_augmentations=0))
