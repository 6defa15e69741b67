"""CoTTA against NumPy: its steps, its augmentations and its limits."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import cotta
from tff_shift.algorithms import source
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.models.networks import mlp

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


def changed(**changes):
  return dataclasses.replace(HPARAMS, **changes)


def softmax(logits):
  exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
  return exponentials / exponentials.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def client(make_adapting_client):
  return make_adapting_client(0, 9, 7)


@pytest.fixture(scope="module")
def weights(model, client, run_in_graph):
  """The source of the client."""
  return run_in_graph(model.initial_weights, client.seed)


def moved(weights, seed):
  generator = np.random.default_rng(seed)
  return tf.nest.map_structure(
    lambda w: np.float32(w + generator.normal(0, 0.3, w.shape)), weights
  )


@pytest.fixture(scope="module")
def apart(weights):
  """A student and a teacher that differ from each other and the source."""
  return cotta.ClientState(moved(weights, 0), moved(weights, 1), ({},))


def train(functions, run_in_graph, state, client, round_num=2):
  return run_in_graph(
    functions.train_client, (), state, client, np.int32(round_num)
  )


def first_state(functions, run_in_graph, client):
  return run_in_graph(functions.initial_client_state, client.seed, ())


class TestConsistency:
  def test_value_and_gradient(self, run_in_graph):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(4, 3)).astype(np.float32)
    targets = np.float32(softmax(generator.normal(size=(4, 3))))

    def differentiate(logits, targets):
      with tf.GradientTape() as tape:
        tape.watch(logits)
        value = cotta.consistency(logits, targets)
      return value, tape.gradient(value, logits)

    value, gradient = run_in_graph(differentiate, logits, targets)
    p = softmax(np.float64(logits))
    np.testing.assert_allclose(
      value, -np.mean(np.sum(targets * np.log(p), axis=1)), rtol=1e-6
    )
    np.testing.assert_allclose(gradient, (p - targets) / 4, atol=1e-7)

  def test_equal_predictions_have_no_gradient(self, run_in_graph):
    def differentiate(logits):
      with tf.GradientTape() as tape:
        tape.watch(logits)
        value = cotta.consistency(logits, tf.nn.softmax(logits))
      return tape.gradient(value, logits)

    logits = np.random.default_rng(1).normal(size=(50, 7)).astype(np.float32)
    np.testing.assert_array_equal(run_in_graph(differentiate, logits), 0)


class TestRound:
  def step_by_hand(self, oracle, student, teacher, targets, x):
    def loss(current):
      p = softmax(oracle.predict(current, x))
      return -np.mean(np.sum(targets * np.log(p), axis=1))

    new, value = oracle.descend(student, [loss], RATE)
    teacher = tf.nest.map_structure(
      lambda old, own: 0.9 * old + 0.1 * own, teacher, new
    )
    return new, teacher, value

  def test_two_steps_agree_with_the_oracle(
    self, model, client, apart, oracle, run_in_graph, compare
  ):
    functions = cotta.build(model, changed(adaptation_steps=2))
    result = train(functions, run_in_graph, apart, client)
    student, teacher, losses = apart.student, apart.teacher, []
    for _ in range(2):
      targets = softmax(oracle.predict(teacher, client.stream_x))
      student, teacher, loss = self.step_by_hand(
        oracle, student, teacher, targets, client.stream_x
      )
      losses.append(loss)
    compare.assert_close(result.client_state.student, student, 1e-5)
    compare.assert_close(result.client_state.teacher, teacher, 1e-5)
    np.testing.assert_allclose(result.loss, np.mean(losses), rtol=1e-5)

  @pytest.fixture(scope="class")
  def unsure(self):
    """Of a teacher that averages over noisy features."""
    return changed(
      confidence_threshold=1.1, num_augmentations=3, augmentation_noise=0.5
    )

  def mean_logits(self, oracle, run_in_graph, teacher, x, seed):
    return np.mean(
      [
        oracle.predict(
          teacher,
          run_in_graph(
            lambda x, seed, number=number: cotta.augment(
              x,
              randomness.fold(seed, number),
              changed(augmentation_noise=0.5),
            ),
            x,
            seed,
          ),
        )
        for number in range(3)
      ],
      axis=0,
    )

  def test_a_step_towards_the_mean_over_augmentations(
    self, model, client, apart, unsure, oracle, run_in_graph, compare
  ):
    functions = cotta.build(model, unsure)
    result = train(functions, run_in_graph, apart, client)
    seed = run_in_graph(
      lambda seed: randomness.fold(seed, randomness.Purpose.TRAIN, 2, 0, 0),
      client.seed,
    )
    targets = softmax(
      self.mean_logits(
        oracle, run_in_graph, apart.teacher, client.stream_x, seed
      )
    )
    student, teacher, _ = self.step_by_hand(
      oracle, apart.student, apart.teacher, targets, client.stream_x
    )
    compare.assert_close(result.client_state.student, student, 1e-5)
    compare.assert_close(result.client_state.teacher, teacher, 1e-5)
    plain = train(cotta.build(model, HPARAMS), run_in_graph, apart, client)
    difference = plain.client_state.student.head[0] - student.head[0]
    assert np.max(np.abs(difference)) > 1e-3

  def test_the_source_decides_whether_a_batch_is_augmented(
    self,
    model,
    client,
    weights,
    apart,
    unsure,
    make_client,
    oracle,
    run_in_graph,
  ):
    examples = make_client(5, [7])
    confidence = softmax(oracle.predict(weights, examples.x)).max(axis=1).mean()
    seed = run_in_graph(
      lambda seed: randomness.fold(seed, randomness.Purpose.TEST_TIME),
      client.seed,
    )
    plain = oracle.predict(apart.teacher, examples.x)
    averaged = self.mean_logits(
      oracle, run_in_graph, apart.teacher, examples.x, seed
    )
    assert np.max(np.abs(plain - averaged)) > 1e-2
    for threshold, expected in (
      (confidence - 1e-4, plain),
      (confidence + 1e-4, averaged),
    ):
      hparams = dataclasses.replace(unsure, confidence_threshold=threshold)
      functions = cotta.build(model, hparams)
      assert functions.predicts_batches
      found = run_in_graph(
        functions.predict_as_client, (), apart, client, examples
      )
      np.testing.assert_allclose(found, expected, atol=1e-5)

  def test_weights_return_to_the_source_at_random(
    self, model, client, weights, apart, run_in_graph, compare
  ):
    kept, some, other = (
      train(
        cotta.build(model, changed(restore_probability=probability)),
        run_in_graph,
        apart,
        client,
        round_num,
      ).client_state
      for probability, round_num in ((0.0, 2), (0.3, 2), (0.3, 3))
    )
    # The teacher has learned from the student before.
    assert compare.equal_bits(some.teacher, kept.teacher)
    masks = []
    for state in (some, other):
      mask = []
      for own, free, first in zip(
        *map(tf.nest.flatten, (state.student, kept.student, weights)),
        strict=True,
      ):
        is_restored = own == first
        np.testing.assert_array_equal(own, np.where(is_restored, first, free))
        mask.append(is_restored.ravel())
      masks.append(np.concatenate(mask))
    number = masks[0].size
    for mask in masks:
      # Five standard deviations.
      assert abs(mask.mean() - 0.3) < 5 * np.sqrt(0.21 / number)
    assert np.any(masks[0] != masks[1])


class TestLimits:
  def test_a_confident_source_moves_nothing(
    self, model, client, run_in_graph, compare
  ):
    """Bit for bit, at the published optimizer, rate and restoration."""
    functions = cotta.build(
      model, cotta.HParams(adaptation_steps=3, num_augmentations=0)
    )
    state = first_state(functions, run_in_graph, client)
    result = train(functions, run_in_graph, state, client)
    assert compare.equal_bits(result.client_state[:2], state[:2])

  @pytest.mark.parametrize(
    "changes", [{"learning_rate": 0.0}, {"restore_probability": 1.0}]
  )
  def test_the_student_stays_the_source(
    self, changes, model, client, weights, run_in_graph, compare
  ):
    functions = cotta.build(
      model, cotta.HParams(confidence_threshold=2.0, **changes)
    )
    state = first_state(functions, run_in_graph, client)
    result = train(functions, run_in_graph, state, client)
    assert compare.equal_bits(result.client_state.student, weights)

  def test_a_teacher_without_students_predicts_as_the_source(
    self, model, client, weights, apart, make_client, run_in_graph, compare
  ):
    functions = cotta.build(model, changed(teacher_memory=1.0))
    state = apart._replace(teacher=weights)
    result = train(functions, run_in_graph, state, client)
    assert compare.equal_bits(result.client_state.teacher, weights)
    assert not compare.equal_bits(result.client_state.student, state.student)
    examples = make_client(5, [7])
    found, plain = (
      run_in_graph(each.predict_as_client, shared, own, client, examples)
      for each, shared, own in (
        (functions, (), result.client_state),
        (source.build(model, source.HParams()), weights, ()),
      )
    )
    np.testing.assert_array_equal(found, plain)

  def test_without_memory_the_teacher_is_the_student(
    self, model, client, apart, run_in_graph, compare
  ):
    functions = cotta.build(model, changed(teacher_memory=0.0))
    state = train(functions, run_in_graph, apart, client).client_state
    compare.assert_close(state.teacher, state.student, 1e-6)


class TestAugmentations:
  @pytest.fixture(scope="class")
  def images(self):
    generator = np.random.default_rng(2)
    return generator.integers(0, 256, (4, 12, 10, 3)).astype(np.uint8)

  @pytest.mark.parametrize("channels", [1, 3])
  def test_images_of_a_batch_change_alike(self, channels, images, run_in_graph):
    images = images[..., :channels]
    twins = np.stack([images[0], images[0], images[1]])

    def augment(x, seed):
      return cotta.augment(x, seed, changed(augmentation_noise=0.0))

    found = [
      run_in_graph(augment, twins, np.int32([seed, 1])) for seed in range(3)
    ]
    for each in found:
      assert each.dtype == np.uint8
      np.testing.assert_array_equal(each[0], each[1])
      assert np.any(each[0] != each[2])
    assert np.any(found[0] != found[1])

  def test_half_of_them_are_mirrored(self, run_in_graph):
    """A dark left half stays left, or comes to the right."""
    images = np.zeros((1, 16, 16, 1), np.uint8)
    images[:, :, 8:] = 255
    sides = []

    def augment(x, seed):
      return cotta.augment(x, seed, HPARAMS)

    for seed in range(40):
      found = run_in_graph(augment, images, np.int32([seed, 7]))
      sides.append(found[..., :4, 0].mean() < found[..., 12:, 0].mean())
    # A fair coin is outside once in 100,000.
    assert 7 <= sum(sides) <= 33

  def test_affine_maps_are_similarities(self, run_in_graph):
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
      np.testing.assert_allclose([a, b], [d, -c], atol=1e-4)
      scale, angle = 1 / np.hypot(a, b), np.degrees(np.arctan2(b, a))
      assert 0.9 - 1e-4 <= scale <= 1.1 + 1e-4
      assert abs(angle) <= 15.01
      centre = mapped[:, 11:13, 11:13, 0].mean(axis=(1, 2)) - 11.5
      assert np.hypot(*centre) <= np.hypot(3, 3) / 0.9 + 1e-3
      found[round(angle, 3), round(scale, 3)] = centre
    assert len(found) == 8

  def test_colours_stay_within_their_amounts(self, run_in_graph):
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

  @pytest.mark.parametrize("channels", [1, 3])
  def test_without_amounts_images_stay(self, channels, images, run_in_graph):
    hparams = changed(
      augmentation_scale=0.0, augmentation_flip=False, augmentation_noise=0.0
    )
    x = images[..., :channels]
    found = run_in_graph(lambda x, s: cotta.augment(x, s, hparams), x, SEED)
    np.testing.assert_array_equal(found, x)

  def test_features_get_noise(self, run_in_graph):
    x = np.zeros((500, 8), np.float32)
    hparams = changed(augmentation_noise=0.2)
    found = run_in_graph(lambda x, s: cotta.augment(x, s, hparams), x, SEED)
    np.testing.assert_allclose(found.std(), 0.2, rtol=0.05)
    np.testing.assert_allclose(found.mean(), 0, atol=0.01)

  def test_images_are_adapted_to(self, make_client, run_in_graph, compare):
    """A round of images, with all augmentations."""
    model = mlp.build(
      (6, 5, 3), num_classes=3, width=6, head_width=5, input_dtype=tf.uint8
    )
    generator = np.random.default_rng(5)

    def images(number):
      return generator.integers(0, 256, (number, 6, 5, 3)).astype(np.uint8)

    functions = cotta.build(
      model, changed(confidence_threshold=2.0, num_augmentations=4)
    )
    weights = run_in_graph(model.initial_weights, SEED)
    state = cotta.ClientState(weights, weights, ({},))
    data = cotta.adaptation.AdaptationData(
      x=images(3),
      y=np.int32([0, 1, 2]),
      stream_x=images(5),
      timestep=np.int32(1),
      confusion=np.eye(3, dtype=np.float32),
      seed=SEED,
    )
    result = train(functions, run_in_graph, state, data)
    for new, old in zip(
      *map(tf.nest.flatten, (result.client_state.teacher, weights)), strict=True
    ):
      assert np.all(np.isfinite(new))
      assert np.any(new != old)

  def test_tokens_are_refused(self, refusal):
    layers = tf.keras.layers
    model = split_model.build_split_model(
      "tokens",
      backbone=lambda: tf.keras.Sequential(
        [
          layers.InputLayer((4,), dtype=tf.int32),
          layers.Embedding(9, 3),
          layers.GlobalAveragePooling1D(),
        ]
      ),
      head=lambda: tf.keras.Sequential(
        [layers.InputLayer((3,)), layers.Dense(3)]
      ),
      input_dtype=tf.int32,
    )
    message = refusal(cotta.build, model, HPARAMS)
    assert "cotta without --num_augmentations=0" in message
    assert "takes int32 [4]" in message
    cotta.build(model, changed(num_augmentations=0))


def test_batch_normalization_uses_the_batch(
  normalized_model, client, make_client, run_in_graph
):
  functions = cotta.build(normalized_model, HPARAMS)
  state = first_state(functions, run_in_graph, client)
  examples = make_client(5, [7])
  found = run_in_graph(functions.predict_as_client, (), state, client, examples)
  (kernel, bias, scale, shift), (head, head_bias) = state.teacher
  before = examples.x @ kernel + bias
  normed = (before - before.mean(0)) / np.sqrt(before.var(0) + 1e-3)
  expected = np.maximum(normed * scale + shift, 0) @ head + head_bias
  np.testing.assert_allclose(found, expected, atol=1e-5)
