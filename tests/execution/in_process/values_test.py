"""Tests of arguments and results: types, containers, data sets."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.fixtures.computations import AT_CLIENTS
from tests.fixtures.computations import multiply


def test_strings_with_zero_bytes(run, context):
  @tff.tensorflow.computation(np.str_, (np.str_, [None]))
  def shout(word, words):
    return tf.strings.join([word, "!"]), tf.strings.upper(words)

  word, words = run(context, shout, b"a\0", np.array(["b", b"c\0"], object))
  assert word == b"a\0!"
  assert words.tolist() == [b"B", b"C\0"]


def test_containers_and_keywords(run, context):
  pair = collections.namedtuple("pair", ["second", "first"])

  @tff.tensorflow.computation(np.int32, np.float32)
  def swap(first, second):
    return pair(second=second, first=first)

  assert run(context, lambda: swap(second=2.0, first=1)) == pair(2.0, 1)


def test_sequences_from_lists_and_datasets(run, context):
  element = collections.OrderedDict(number=np.int32, row=(np.float32, [None]))

  @tff.tensorflow.computation(tff.SequenceType(element))
  def look(dataset):
    swapped = dataset.map(
      lambda each: collections.OrderedDict(row=each["row"], n=each["number"])
    )
    zero = (0, 0.0)
    return swapped, dataset.reduce(
      zero,
      lambda state, each: (
        state[0] + each["number"],
        state[1] + tf.reduce_sum(each["row"]),
      ),
    )

  # Rows of different lengths, and names whose order is not alphabetical.
  rows = [[1.0, 2.0], [3.0, 4.0], [5.0]]
  elements = [
    collections.OrderedDict(number=index, row=row)
    for index, row in enumerate(rows)
  ]
  swapped, sums = run(context, look, elements)
  assert sums == (3, 15.0)
  assert [each["n"] for each in swapped.as_numpy_iterator()] == [0, 1, 2]
  again, _ = run(
    context,
    look,
    swapped.map(
      lambda each: collections.OrderedDict(number=each["n"], row=each["row"])
    ),
  )
  assert [each["row"].tolist() for each in again.as_numpy_iterator()] == rows
  assert run(context, look, [])[1] == (0, 0.0)


ELEMENT = collections.OrderedDict(a=np.int32, b=np.int32)
first = tff.tensorflow.computation(lambda x: x["a"], ELEMENT)
count = tff.tensorflow.computation(
  lambda dataset: dataset.reduce(0, lambda state, _: state + 1),
  tff.SequenceType(np.int32),
)


@tff.federated_computation(AT_CLIENTS, AT_CLIENTS)
def two_sums(a, b):
  return tff.federated_sum(a), tff.federated_sum(b)


@pytest.mark.parametrize(
  "computation, arguments, message",
  [
    *(
      (multiply, (argument, 1.0), message)
      for argument, message in (
        (np.float64(1.0), "float32 was expected; got float64"),
        (tf.constant(1.0, tf.float64), "got float64"),
        (1, "float32 was expected; got int"),
        (True, "got bool"),
        (1e300, "got float"),
        (None, "got NoneType"),
        (np.zeros(2, np.float32), r"got shape \(2,\)"),
      )
    ),
    (
      first,
      [collections.OrderedDict(b=2, a=1)],
      "named a where b was found",
    ),
    (first, [collections.OrderedDict(a=1)], "must have 2 elements; got 1"),
    (first, [1], "must be a structure; got int"),
    (count, [tf.data.Dataset.range(3)], r"int32\* was expected; got int64\*"),
    (count, [3], r"must be a tf\.data\.Dataset"),
    (two_sums, [np.ones(2, np.float32), [1.0, 1.0]], "must be a list"),
  ],
)
def test_wrong_types_are_named(run, context, computation, arguments, message):
  with pytest.raises(TypeError, match=message):
    run(context, computation, *arguments)


def test_clients_that_disagree(run, context):
  with pytest.raises(ValueError, match="got 1 and 2"):
    run(context, two_sums, [1.0], [1.0, 1.0])


def test_narrower_argument_is_widened(run, context):
  assert run(context, multiply, np.float16(1.5), tf.constant(2.0)) == 3.0
  half = tf.constant(0.5, tf.float16)
  assert run(context, multiply, half, tf.Variable(4.0)) == 2.0
