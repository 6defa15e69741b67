"""Names of tensors, beside those that the model's file gives them."""

import collections
from typing import Any
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures.keras_models import dense
from tff_shift.models import guided_model
from tff_shift.models import split_model
from tff_shift.models.networks import mlp
from tff_shift.serving import naming


class Both(NamedTuple):
  """Two backbones, or anything else."""

  phi: Any
  psi: Any


class State(NamedTuple):
  head: Any
  rate: Any


MODEL = guided_model.with_guide(
  mlp.build((2,), num_classes=4, width=6, head_width=5), 3, 7
)


@pytest.fixture(scope="module")
def weights():
  """Each is filled with its position, to be told apart."""
  shapes = MODEL.backbone.shapes, MODEL.head.shapes
  filled = iter(np.full(s, i) for i, s in enumerate(shapes[0] + shapes[1]))
  return split_model.SplitWeights(
    *(tuple(next(filled) for _ in part) for part in shapes)
  )


def names_of(model):
  names = model.weight_names()
  return [*names.backbone, *names.head]


def test_weights_of_the_model_have_its_names(weights):
  found = naming.by_name(weights, MODEL)
  assert list(found) == names_of(MODEL)
  assert [values.flat[0] for values in found.values()] == list(
    range(len(names_of(MODEL)))
  )


@pytest.mark.parametrize("head", split_model.HEADS)
def test_names_are_those_of_the_model_wherever_it_is_cut(weights, head):
  cut = split_model.with_head(MODEL, head)
  flat = [*weights.backbone, *weights.head]
  size = len(cut.backbone.names)
  found = naming.by_name(tuple(flat[:size]), MODEL)
  assert list(found) == names_of(MODEL)[:size]
  found = naming.by_name(tuple(flat[size:]), MODEL)
  assert list(found) == names_of(MODEL)[size:]


def test_fields_stand_above_and_are_not_said_twice(weights):
  backbone, head = MODEL.weight_names()
  found = naming.by_name(Both(weights.backbone, weights), MODEL)
  assert list(found) == [
    *(f"phi/{name}" for name in backbone),
    *(f"psi/{name}" for name in (*backbone, *head)),
  ]
  found = naming.by_name(State(weights.head, np.float32(0.5)), MODEL)
  assert list(found) == [*head, "rate"]


def test_field_decides_where_shapes_do_not():
  square = split_model.build_split_model(
    "square",
    backbone=dense(2, backbone_layer=2),
    head=dense(2, head_layer=2),
    input_dtype=tf.float32,
  )
  layer = np.zeros((2, 2)), np.zeros(2)
  found = naming.by_name({"backbone": layer, "head": layer}, square)
  assert list(found) == names_of(square)


def test_client_branch_is_named_by_its_layers():
  branch = tuple(np.zeros(shape) for shape in MODEL.client_branch.shapes)
  assert list(naming.by_name(branch, MODEL)) == [
    f"client_branch/{name}" for name in MODEL.client_branch.names
  ]


def test_all_else_is_named_by_position():
  other = collections.OrderedDict(b=(np.zeros(9), np.zeros(8)), a=np.zeros(7))
  found = naming.by_name(other, MODEL)
  assert {name: len(values) for name, values in found.items()} == {
    "a": 7,
    "b/0": 9,
    "b/1": 8,
  }
  assert list(naming.by_name(np.zeros(3), MODEL)) == ["value"]
  assert naming.by_name((), MODEL) == {}
