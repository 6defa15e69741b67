"""Every form in which arrays are saved gives back every bit."""

import collections
import json
from typing import NamedTuple

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures.refusals import refused
from tff_shift.simulation.storage import encoding


class Pair(NamedTuple):
  one: object
  other: object


arrays = hnp.arrays(
  st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.bool_]),
  hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
structures = st.recursive(
  arrays,
  lambda inner: st.one_of(
    st.builds(Pair, inner, inner),
    st.lists(inner, max_size=3).map(tuple),
    st.dictionaries(st.sampled_from("abc"), inner).map(collections.OrderedDict),
  ),
  max_leaves=6,
)


def described(value):
  return [
    (type(each), each.dtype, each.shape, each.tobytes())
    for each in tf.nest.flatten(value)
  ]


def as_kept(value):
  """The same with scalars as they come back."""
  return tf.nest.map_structure(lambda each: each[()], value)


@pytest.mark.slow
@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(structures)
def test_bytes_give_back_every_bit(value):
  template = tf.nest.map_structure(np.zeros_like, value)
  again = encoding.from_bytes(encoding.to_bytes(value, template), template)
  tf.nest.assert_same_structure(again, value)
  assert described(again) == described(as_kept(value))


@pytest.mark.slow
@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(arrays, st.floats(), st.one_of(st.none(), st.text()))
def test_json_gives_back_every_bit(array, number, text):
  value = Pair({"array": array}, Pair(number, text))
  again = encoding.from_json(json.loads(json.dumps(encoding.to_json(value))))
  assert described([again["one"]["array"]]) == described([array[()]])
  assert np.float64(again["other"]["one"]).tobytes() == (
    np.float64(number).tobytes()
  ) or np.isnan(number)
  assert again["other"]["other"] == text


@pytest.mark.parametrize(
  "other",
  [
    (np.zeros(3, np.float32), np.zeros(2, np.int32)),
    (np.zeros(2, np.float64), np.zeros(2, np.int32)),
    (np.zeros(2, np.float32),),
  ],
)
def test_bytes_of_another_kind_are_refused(other):
  template = np.zeros(2, np.float32), np.zeros(2, np.int32)
  with refused("must be of one kind"):
    encoding.to_bytes(other, template)
  assert encoding.structure(other) != encoding.structure(template)


def test_bytes_of_text_are_refused():
  with refused("states must be numbers"):
    encoding.to_bytes(np.array(["a"], object), np.array([b"b"], object))


def test_structure_tells_names_and_not_values():
  one, other = np.float32(1), np.float32(2)
  assert encoding.structure(Pair(one, other)) == (
    encoding.structure(Pair(other, other))
  )
  assert encoding.structure(Pair(one, other)) != (
    encoding.structure((one, other))
  )


def test_structure_is_the_same_on_all_pythons():
  # From 3.12 on, an ordered dictionary is shown in another way.
  value = Pair(collections.OrderedDict(array=np.zeros(2, np.int32)), ())
  assert encoding.structure(value) == (
    "e677a052523ba01ad56a9bd6dfac6d70bac0c0d731166be8a8df3a6d2bf6d2f4"
  )
