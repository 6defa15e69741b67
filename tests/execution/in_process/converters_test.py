"""Operations of a batch of clients, beside the loop over clients."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import executor_equality
from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.algorithms import fed_avg

PLACES = np.int32([0, 3, 2])
SEEDS = np.int32([[1, 2], [-7, 2**31 - 1], [-(2**31), 0]])


def draw(*sizes):
  generator = np.random.default_rng(sizes)
  return generator.normal(size=(3, *sizes)).astype(np.float32)


class TestDraws:
  @pytest.mark.parametrize("size", [1, 5, 8])
  def test_numbers_are_tensorflows(self, check_batch, size):
    def compute(seed, high):
      return [
        tf.random.stateless_uniform([size, 3], seed),
        tf.random.stateless_normal([size, 3], seed),
        tf.random.stateless_uniform([size], seed, -5, high, tf.int32),
        tf.random.stateless_uniform(
          [size], seed, -(2**31), 2**31 - 1, tf.int32
        ),
        tf.random.experimental.stateless_fold_in(seed, high),
      ]

    check_batch(compute, SEEDS, np.int32([1, 100, 2**31 - 1]))

  def test_seeds_of_64_bits(self, check_batch):
    check_batch(
      lambda seed: [tf.random.stateless_uniform([3], seed)],
      SEEDS.astype(np.int64) * 123456789123,
    )

  def test_other_draws_run_client_by_client(self, check_batch):
    check_batch(
      lambda seed: [tf.random.stateless_uniform([3], seed, dtype=tf.float64)],
      SEEDS,
      looped={"StatelessRandomUniformV2"},
    )


class TestPlaces:
  def test_elements_and_rows(self, check_batch):
    common = tf.constant(draw(5)[0])

    def take(x, i):
      return [x[i], x[i, -1 - i], x[i : i + 2], common[i], x[i : i + 1][:1]]

    check_batch(take, draw(5, 4), np.int32([0, 2, -4]))

  def test_rows_of_different_numbers_are_refused(self, check_batch):
    with pytest.raises(tf.errors.InvalidArgumentError, match="in a shape"):
      check_batch(lambda x, i: [x[i:4]], draw(5), PLACES)

  @pytest.mark.parametrize("dtype", [np.int32, np.int64])
  @pytest.mark.parametrize(
    "scatter",
    [
      tf.tensor_scatter_nd_add,
      tf.tensor_scatter_nd_max,
      tf.tensor_scatter_nd_min,
      tf.tensor_scatter_nd_sub,
      tf.tensor_scatter_nd_update,
    ],
  )
  def test_scatter(self, check_batch, dtype, scatter):
    common = draw(5, 2)[0]

    def compute(tensor, place, updates):
      places = [[place], [4]]
      return [
        scatter(tensor, places, updates),
        scatter(common, places, common[:2]),
        scatter(common, [[1], [2]], updates),
        tf.scatter_nd(places, updates, tf.constant([5, 2], dtype)),
      ]

    check_batch(compute, draw(5, 2), PLACES.astype(dtype), draw(2, 2))

  def test_lists(self, check_batch):
    def compute(place, x):
      array = tf.TensorArray(tf.float32, 4, element_shape=[2])
      _, array = tf.while_loop(
        lambda i, _: i < 4,
        lambda i, array: (
          i + 1,
          array.write((i + place) % 4, x * tf.cast(i, tf.float32)),
        ),
        (0, array),
      )
      common = tf.TensorArray(tf.float32, 4).unstack(tf.zeros([4, 2]))
      common = common.write(place, tf.ones([2]))
      return [array.stack(), array.read(place), common.stack()]

    check_batch(compute, PLACES, draw(2))


class TestArrays:
  def test_counts(self, check_batch):
    weights = draw(6)

    def count(values, own):
      sizes = {"minlength": 5, "maxlength": 5}
      return [
        tf.math.bincount(values, **sizes),
        tf.math.bincount(values, own, **sizes),
        tf.math.bincount(values, weights[0], **sizes),
        tf.math.bincount([0, 1, 1, 4, 2, 0], own, **sizes),
        tf.math.bincount(values, binary_output=True, **sizes),
        tf.raw_ops.Bincount(
          arr=values, size=5, weights=tf.zeros([0], tf.int32)
        ),
      ]

    check_batch(
      count,
      np.int32([[0, 3, 3, 1, 4, 3], [2] * 6, [4, 3, 2, 1, 0, 0]]),
      weights,
    )

  @pytest.mark.parametrize("dtype", [np.int32, np.int64])
  def test_what_is_in_no_segment_is_left_out(self, check_batch, dtype):
    def compute(ids, x):
      return [
        reduce(x, ids, 3)
        for reduce in (
          tf.math.unsorted_segment_max,
          tf.math.unsorted_segment_min,
          tf.math.unsorted_segment_prod,
          tf.math.unsorted_segment_sum,
        )
      ]

    ids = np.array([[0, 2, -1], [-1, 1, 1], [-5, -1, 2]], dtype)
    check_batch(compute, ids, draw(3, 2))

  def test_decompositions_and_sums(self, check_batch):
    check_batch(
      lambda x: [
        *tf.linalg.svd(x),
        tf.linalg.svd(x, compute_uv=False),
        *tf.linalg.qr(x),
        tf.nn.l2_loss(x),
      ],
      draw(2, 3, 4),
    )

  def test_largest_and_parts_of_different_lengths(self, check_batch):
    def compute(x):
      array = tf.TensorArray(
        tf.float32, 2, infer_shape=False, element_shape=[None]
      )
      array = array.write(0, x[:1]).write(1, x[:2])
      return [*tf.math.top_k(x, 2), tf.ensure_shape(array.concat(), [3])]

    check_batch(compute, np.float32([[1, 3, 2], [5, 4, 6]]))

  @pytest.mark.parametrize("num_clients", [1, 3])
  def test_axis_of_clients_is_not_squeezed(self, check_batch, num_clients):
    check_batch(
      lambda x: [tf.squeeze(x, axes) for axes in (None, [0], [-1])],
      draw(1, 2, 1)[:num_clients],
    )

  def test_softmax_of_many_axes(self, check_batch):
    check_batch(
      lambda x: [tf.nn.softmax(x), tf.nn.log_softmax(x)], draw(2, 1, 2, 3, 4)
    )

  def test_order(self, check_batch):
    check_batch(
      lambda x: [
        tf.sort(x, axis=0, direction="DESCENDING"),
        tf.argsort(x, stable=True),
      ],
      np.float32([[[3, 1, 1], [2, 2, 5]]] * 3),
    )

  @pytest.mark.parametrize("method", ["bilinear", "nearest"])
  def test_sizes_of_images(self, check_batch, method):
    def resize(images):
      with tf.GradientTape() as tape:
        tape.watch(images)
        found = tf.image.resize(images, [5, 7], method)
        loss = tf.reduce_sum(tf.sin(found))
      return [found, tape.gradient(loss, images)]

    check_batch(resize, draw(2, 3, 4, 2))

  def test_rows_of_a_table(self, check_batch):
    words = np.int32([[[0, 3], [2, 3]], [[1, 1], [4, 0]], [[2, 0], [0, 0]]])
    tables = draw(5, 3)

    def look_up(table, words):
      with tf.GradientTape() as second:
        second.watch(table)
        with tf.GradientTape() as tape:
          tape.watch(table)
          found = tf.nn.embedding_lookup(table, words)
          loss = tf.reduce_sum(tf.sin(found))
        gradient = tf.convert_to_tensor(tape.gradient(loss, table))
        norm = tf.reduce_sum(gradient**2)
      return [
        found,
        gradient,
        tf.convert_to_tensor(second.gradient(norm, table)),
      ]

    check_batch(look_up, tables, words)
    check_batch(lambda table: look_up(table, words[0]), tables)
    check_batch(lambda each: look_up(tf.constant(tables[0]), each), words)


@pytest.mark.long
@pytest.mark.parametrize("layer", ["LSTM", "GRU", "convolutions"])
def test_keras_layers(layer):
  layers = tf.keras.layers
  if layer == "convolutions":
    stack = [
      layers.InputLayer((6, 6, 1)),
      layers.Conv2D(4, 3, strides=2, activation="relu"),
      layers.Conv2DTranspose(4, 3, strides=2),
      layers.BatchNormalization(),
      layers.DepthwiseConv2D(2),
      layers.MaxPooling2D(),
      layers.Flatten(),
      layers.Dropout(0.2),
    ]
  else:
    stack = [
      layers.InputLayer((5,), dtype="int32"),
      layers.Embedding(50, 3),
      getattr(layers, layer)(4),
    ]
  built = algorithms.build(
    fed_avg,
    models.from_keras(tf.keras.Sequential([*stack, layers.Dense(3)])),
    fed_avg.HParams(local_steps=2, batch_size=4),
  )
  with execution.use("in_process", batch_clients=False):
    calls = executor_equality.run_all(built, ())
  with execution.use("in_process", batch_clients=True) as context:
    for call in calls:
      found = call.computation(*call.arguments)
      assert executor_equality.largest_difference(found, call.result) < 1e-6
  assert context.forms["phase"] == "batch"
