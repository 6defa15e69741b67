"""Tests of prototypes beside NumPy: eq. 3, the distances, eq. 4 and 6."""

import functools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.spatial.distance
import scipy.special
import tensorflow as tf

from tff_shift.algorithms.parts import prototypes
from tff_shift.data import client_dataset

DISTANCES = ("l2", "squared_l2", "cosine")


def class_means(embeddings, y):
  """The prototype of each class that there is, by class."""
  return {label: embeddings[y == label].mean(axis=0) for label in set(y)}


def distance_matrix(embeddings, means, distance):
  metric = {"l2": "euclidean", "squared_l2": "sqeuclidean", "cosine": "cosine"}[
    distance
  ]
  return scipy.spatial.distance.cdist(embeddings, means, metric)


def alignment_loss(embeddings, y, means, distance):
  """Eq. 4 in float64; `means` by class."""
  known = sorted(set(means) & set(y.tolist()))
  if not known:
    return 0.0
  chosen = np.isin(y, known)
  scores = -distance_matrix(
    embeddings[chosen], np.stack([means[c] for c in known]), distance
  )
  labels = np.searchsorted(known, y[chosen])
  log_probabilities = scipy.special.log_softmax(scores, axis=1)
  return -log_probabilities[np.arange(len(labels)), labels].mean()


@st.composite
def batches(draw, min_examples=1):
  """(num_classes, embeddings and classes of two batches), float64 and int."""
  num_classes = draw(st.integers(1, 5))
  size = draw(st.integers(1, 6))
  generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

  def batch():
    num_examples = draw(st.integers(min_examples, 10))
    return (
      generator.normal(size=(num_examples, size)),
      generator.integers(0, num_classes, num_examples),
    )

  return num_classes, batch(), batch()


EMBEDDINGS = tf.TensorSpec([None, None], tf.float32)
CLASSES = tf.TensorSpec([None], tf.int32)


def means_of(embeddings, y, num_classes):
  return prototypes.class_means(
    prototypes.class_sums(embeddings, y, num_classes)
  )


@pytest.fixture(scope="module")
def compute_means(compile_in_graph):
  """Returns `compute(num_classes)(embeddings, y)`: sums, prototypes."""

  @functools.cache
  def compute(num_classes):
    def work(embeddings, y):
      sums = prototypes.class_sums(embeddings, y, num_classes)
      return sums, prototypes.class_means(sums)

    return compile_in_graph(work, EMBEDDINGS, CLASSES)

  return compute


@pytest.fixture(scope="module")
def compute_loss(compile_in_graph):
  """Returns `compute(num_classes, distance)(e1, y1, e2, y2)`.

  It gives the loss of the second batch beside the prototypes of the first, and
  its gradients to the embeddings of both.
  """

  @functools.cache
  def compute(num_classes, distance):
    def work(earlier, y_earlier, later, y_later):
      loss = prototypes.alignment_loss(
        later, y_later, means_of(earlier, y_earlier, num_classes), distance
      )
      return loss, tf.gradients(loss, [earlier, later])

    run = compile_in_graph(work, EMBEDDINGS, CLASSES, EMBEDDINGS, CLASSES)
    return lambda *lists: run(*map(np.asarray, lists))

  return compute


class TestClassMeans:
  @hypothesis.settings(max_examples=40, deadline=None)
  @hypothesis.given(batches(min_examples=0))
  def test_means_of_random_batches(self, compute_means, drawn):
    num_classes, (embeddings, y), _ = drawn
    sums, means = compute_means(num_classes)(embeddings, y)
    expected = class_means(embeddings, y)
    np.testing.assert_array_equal(
      sums.count, np.bincount(y, minlength=num_classes)
    )
    for label in range(num_classes):
      assert means.present[label] == (label in expected)
      # Sums of at most 10 values of float32.
      np.testing.assert_allclose(
        sums.total[label], embeddings[y == label].sum(axis=0), atol=1e-5
      )
      np.testing.assert_allclose(
        means.mean[label], expected.get(label, 0), rtol=0, atol=2e-6
      )


class TestDistances:
  @hypothesis.settings(max_examples=40, deadline=None)
  @hypothesis.given(batches())
  def test_distances_of_random_batches(self, compute_distances, drawn):
    _, (embeddings, _), (means, _) = drawn
    roots, squares, cosines = compute_distances(embeddings, means)
    for found, name in ((roots, "l2"), (squares, "squared_l2")):
      np.testing.assert_allclose(
        found, distance_matrix(embeddings, means, name), rtol=1e-5, atol=1e-6
      )
    np.testing.assert_allclose(
      cosines, distance_matrix(embeddings, means, "cosine"), atol=2e-6
    )
    assert (squares >= 0).all() and (roots >= 0).all()
    # Rounding makes -1e-7 of zero.
    assert cosines.min() > -1e-6 and cosines.max() < 2 + 1e-6

  @pytest.fixture(scope="class")
  def compute_distances(self, compile_in_graph):
    run = compile_in_graph(
      lambda embeddings, means: [
        prototypes.distances(embeddings, means, name) for name in DISTANCES
      ],
      EMBEDDINGS,
      EMBEDDINGS,
    )
    return lambda *lists: run(*map(np.asarray, lists))

  def test_distances_by_hand(self, compute_distances):
    roots, squares, cosines = compute_distances(
      [[3.0, 4.0], [0.0, 2.0]], [[0.0, 0.0], [-6.0, -8.0], [5.0, 0.0]]
    )
    np.testing.assert_array_equal(squares, [[25, 225, 20], [4, 136, 29]])
    np.testing.assert_allclose(
      roots, [[5, 15, 20**0.5], [2, 136**0.5, 29**0.5]], rtol=1e-6
    )
    # The angle to a prototype without length counts as a right one.
    np.testing.assert_allclose(
      cosines, [[1, 2, 0.4], [1, 1.8, 1]], rtol=0, atol=1e-6
    )

  def test_small_distance_between_long_vectors_is_exact(
    self, compute_distances
  ):
    roots, squares, _ = compute_distances(
      [[4096.0, 4096.0]], [[4096.5, 4096.25]]
    )
    assert squares == 0.5**2 + 0.25**2
    np.testing.assert_allclose(roots, np.hypot(0.5, 0.25), rtol=1e-6)

  def test_unknown_distance_is_refused_with_those_that_there_are(self):
    with pytest.raises(ValueError, match="'l1'; there are l2, squared_l2, cos"):
      prototypes.distances(tf.zeros([1, 2]), tf.zeros([3, 2]), "l1")


class TestLogits:
  @pytest.mark.parametrize("distance", DISTANCES)
  def test_classes_without_prototype_have_no_probability(
    self, run_in_graph, distance
  ):
    embeddings = np.float32([[1, 0], [0, 3]])
    means = np.float32([[1, 1], [0, 0], [2, 0]])
    logits = run_in_graph(
      lambda embeddings, means, present: prototypes.logits(
        embeddings, prototypes.Prototypes(means, present), distance
      ),
      embeddings,
      means,
      np.array([True, False, True]),
    )
    # The masked prototype is the nearest of all for the first embedding, but
    # by cosine.
    np.testing.assert_allclose(
      logits[:, [0, 2]],
      -distance_matrix(embeddings, means[[0, 2]], distance),
      rtol=0,
      atol=1e-6,
    )
    probabilities = scipy.special.softmax(np.float64(logits), axis=1)
    assert (probabilities[:, 1] == 0).all()
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("distance", DISTANCES)
class TestAlignmentLoss:
  @pytest.mark.slow
  @hypothesis.settings(max_examples=60, deadline=None)
  @hypothesis.given(drawn=batches())
  def test_loss_of_random_batches(self, compute_loss, distance, drawn):
    num_classes, (earlier, y_earlier), (later, y_later) = drawn
    loss, gradients = compute_loss(num_classes, distance)(
      earlier, y_earlier, later, y_later
    )
    expected = alignment_loss(
      later, y_later, class_means(earlier, y_earlier), distance
    )
    # Distances of up to 100 in float32.
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    assert all(np.isfinite(gradient).all() for gradient in gradients)

  def test_loss_by_hand(self, compute_loss, distance):
    # Prototypes (2, 0) and (0, 2); of the three examples of the second batch
    # one has a class without prototype.
    loss, _ = compute_loss(3, distance)(
      [[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]],
      [0, 0, 1],
      [[2.0, 0.0], [1.0, 1.0], [9.0, 9.0]],
      [0, 1, 2],
    )
    # (2, 0) is 0 and the root of 8 from them, 0 and 1 by cosine; (1, 1) is as
    # far from one as from the other.
    gap = {"l2": 8**0.5, "squared_l2": 8, "cosine": 1}[distance]
    np.testing.assert_allclose(
      loss, (np.log(1 + np.exp(-gap)) + np.log(2)) / 2, rtol=1e-6
    )

  @pytest.mark.parametrize(
    "y_earlier, y_later",
    [
      ([1, 1, 1], [1, 1, 1]),
      ([0, 1, 2], [1, 1, 1]),
      ([1, 1, 1], [0, 1, 2]),
      ([0, 1, 0], [2, 3, 3]),
    ],
  )
  def test_one_class_in_common_or_none_leaves_nothing_to_learn(
    self, compute_loss, distance, y_earlier, y_later
  ):
    earlier, later = np.random.default_rng(4).normal(size=(2, 3, 2))
    loss, gradients = compute_loss(4, distance)(
      earlier, y_earlier, later, y_later
    )
    assert loss == 0
    np.testing.assert_array_equal(gradients, np.zeros((2, 3, 2)))

  def test_embeddings_without_length_have_finite_gradients(
    self, compute_loss, distance
  ):
    loss, gradients = compute_loss(2, distance)(
      np.zeros((2, 3)), [0, 1], np.zeros((2, 3)), [0, 1]
    )
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-6)
    assert all(np.isfinite(gradient).all() for gradient in gradients)

  def test_gradient_flows_through_the_prototypes(self, compute_loss, distance):
    # Three classes in common, one in either batch alone.
    y_earlier = np.array([0, 1, 2, 1, 3, 0])
    y_later = np.array([2, 1, 0, 4, 1])
    generator = np.random.default_rng(6)
    earlier = generator.normal(size=(6, 3)).astype(np.float32)
    later = generator.normal(size=(5, 3)).astype(np.float32)

    _, gradients = compute_loss(5, distance)(earlier, y_earlier, later, y_later)

    def loss(flat):
      flat_earlier, flat_later = np.split(flat, [earlier.size])
      return alignment_loss(
        flat_later.reshape(later.shape),
        y_later,
        class_means(flat_earlier.reshape(earlier.shape), y_earlier),
        distance,
      )

    start = np.concatenate([earlier.ravel(), later.ravel()]).astype(np.float64)
    # The differences are those of the loss in float64. There a step of 1e-6
    # balances what it leaves out (its square, 1e-12, by the third derivative)
    # and rounding (1e-16 / 1e-6): both stay far below the error of float32 on
    # the other side, 1e-7 for each of a handful of operations.
    step = 1e-6
    expected = np.array(
      [
        (loss(start + step * unit) - loss(start - step * unit)) / (2 * step)
        for unit in np.eye(start.size)
      ]
    )
    actual = np.concatenate([gradient.ravel() for gradient in gradients])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-6)
    to_earlier = gradients[0]
    assert (np.abs(to_earlier[y_earlier != 3]).max(axis=1) > 1e-3).all()
    assert not to_earlier[y_earlier == 3].any()


class TestSoftmaxClasses:
  # Classes 0 and 2 in the first domain, none in the second, 1 in the third.
  DATA = client_dataset.ClientDataset.from_arrays(
    x=np.zeros((5, 1), np.float32),
    y=np.int32([2, 0, 2, 1, 1]),
    domain_sizes=np.int32([3, 0, 2]),
    seed=np.int32([0, 0]),
  )

  def test_classes_of_each_domain_by_hand(self, run_in_graph):
    found = run_in_graph(
      lambda data: [
        prototypes.softmax_classes("domain", data, 4)(tf.constant(domain))
        for domain in range(3)
      ],
      self.DATA,
    )
    np.testing.assert_array_equal(
      found,
      [
        [True, False, True, False],
        [False, False, False, False],
        [False, True, False, False],
      ],
    )

  def test_batch_asks_for_nothing(self):
    assert prototypes.softmax_classes("batch", self.DATA, 4)(0) is None

  @pytest.mark.parametrize(
    ("classes", "others"),
    [
      # The batch is of class 0 alone; only a class with a prototype counts.
      (None, 0),
      ([True, False, False, False], 0),
      ([True, True, False, False], 1),
      ([True, True, True, False], 1),
      ([True, True, True, True], 2),
    ],
  )
  def test_loss_by_hand(self, run_in_graph, classes, others):
    # All prototypes are as far from the embedding as its own.
    loss = run_in_graph(
      lambda embeddings, means, present: prototypes.alignment_loss(
        embeddings,
        tf.constant([0]),
        prototypes.Prototypes(means, present),
        "l2",
        classes if classes is None else tf.constant(classes),
      ),
      np.float32([[0, 0]]),
      np.float32([[3, 4], [5, 0], [0, 0], [-4, 3]]),
      np.array([True, True, False, True]),
    )
    np.testing.assert_allclose(loss, np.log(1 + others), rtol=1e-6, atol=1e-7)

  def test_class_outside_of_the_batch_pushes_away(self, run_in_graph):
    """It does so only where the softmax goes over the domain."""
    means = np.float32([[0, 0], [3, 0]])

    def slopes(embeddings):
      held = prototypes.Prototypes(means, tf.constant([True, True]))
      return [
        tf.gradients(
          prototypes.alignment_loss(
            embeddings, tf.constant([0]), held, "squared_l2", classes
          ),
          embeddings,
        )[0]
        for classes in (None, tf.constant([True, True]))
      ]

    of_batch, of_domain = run_in_graph(slopes, np.float32([[1, 0]]))
    np.testing.assert_array_equal(of_batch, [[0, 0]])
    # p (2 (x - 0) - 2 (x - 3)) with p = e^-4 / (e^-1 + e^-4), that of class 1.
    expected = 6 / (1 + np.exp(3))
    np.testing.assert_allclose(of_domain, [[expected, 0]], rtol=1e-5)
