"""Tests of ResNet-18 with a guide: parameters, start, and its trunk."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.models import parts
from tff_shift.models.keras import keras_parts
from tff_shift.models.networks import guided_resnet
from tff_shift.models.networks import projection
from tff_shift.models.networks import resnet

pytestmark = pytest.mark.slow

SEED = np.array([1, 2], np.int32)


@pytest.fixture(scope="module")
def full():
  return guided_resnet.build()


@pytest.fixture(scope="module")
def small():
  return guided_resnet.build(
    (8, 8, 3), 4, num_clients=5, width=4, groups=2, input_dtype=tf.float32
  )


@pytest.mark.parametrize(
  "num_classes, guided, split, head",
  [
    (10, 11_437_138, 11_303_242, 2_570),
    (20, 11_439_708, 11_305_812, 5_140),
    (100, 11_460_268, 11_326_372, 25_700),
  ],
)
def test_parameters_are_the_published_numbers(
  full, num_classes, guided, split, head
):
  model = full
  if num_classes != full.num_classes:
    # The rest does not depend on the classes and takes seconds to build.
    other_head = projection.head(full.embedding_size, num_classes)
    head_part = keras_parts.make_part(other_head, parts.HEAD)
    model = dataclasses.replace(full, head=head_part)
  assert model.num_guided_parameters == guided
  assert model.num_parameters == split
  assert model.head.num_parameters == head


def test_sizes_are_passed_on(full, small):
  assert (full.embedding_size, small.embedding_size) == (256, 16)
  assert (full.num_classes, small.num_classes) == (10, 4)
  assert (full.num_clients, small.num_clients) == (8, 5)


def test_scale_of_the_second_normalization_starts_at_zero(small, run_in_graph):
  weights = run_in_graph(small.initial_backbone, SEED)
  starts = {
    name: set(weight)
    for name, weight in zip(small.backbone.names, weights, strict=True)
    if name.endswith("/gamma")
  }
  second = [n for n in starts if n.endswith(".layer2_normalization/gamma")]
  assert len(second) == 8
  for name, start in starts.items():
    assert start == {0.0 if name in second else 1.0}, name


def definition(keras_model):
  """Layers and what each takes; those without a name of ours by position."""
  described = keras_model.get_config()["layers"]
  positions = {layer["name"]: i for i, layer in enumerate(described)}
  # Where a scale starts is not what a network computes.
  left_out = ("name", "gamma_initializer")
  return [
    (
      layer["class_name"],
      {k: v for k, v in layer["config"].items() if k not in left_out},
      [positions[name] for node in layer["inbound_nodes"] for name, *_ in node],
    )
    for layer in described
  ]


def test_trunk_is_the_network_of_resnet(small):
  other = resnet.trunk((8, 8, 3), stem="cifar", width=4, groups=2)
  assert definition(small.trunk.source.keras_model) == definition(other)
  assert {name.split("/")[0] for name in small.trunk.names} == {
    layer.name for layer in other.layers if layer.weights
  }
