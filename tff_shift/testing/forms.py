"""The forms of algorithms, and algorithms that have all parts of them."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.learning import algorithm
from tff_shift.models import guided_model
from tff_shift.models import split_model

layers = tf.keras.layers

# The number of clients that the model's guide distinguishes.
NUM_CLIENTS = 4


@functools.cache
def model() -> guided_model.GuidedModel:
  """Returns a model in which no weight has the shape of an example.

  Nor do weights have the shape of metrics. It has a guide that distinguishes
  four clients, which most algorithms ignore. It has few layers, since each adds
  to the time of building and compiling.
  """

  def backbone():
    return tf.keras.Sequential(
      [
        layers.InputLayer((5,)),
        layers.Dense(8, activation="relu", name="layer1"),
      ]
    )

  def head():
    return tf.keras.Sequential(
      [layers.InputLayer((8,)), layers.Dense(3, name="layer2")]
    )

  return guided_model.with_guide(
    split_model.build_split_model(
      "two_layers", backbone=backbone, head=head, input_dtype=tf.float32
    ),
    num_clients=NUM_CLIENTS,
    width=7,
  )


def hparams(name: str) -> Any:
  """Returns hyper-parameters of an algorithm: few steps, high rates."""
  defaults = algorithms.get(name).HParams()
  values = {
    "batch_size": 4,
    "local_steps": 2,
    "num_hidden": 1,
    "snapshot_period": 1,
    "clustering_round": 2,
    "learning_rate": 0.2,
    "smallest_rate": 0.1,
    "eta_min": 0.1,
    "eta_max": 0.3,
    # Times the learning rate, it must be below 2.
    "moreau_lambda": 5.0,
    # A cluster is split in each round.
    "mean_norm": 1e6,
    "longest_norm": 0.0,
    "smallest_split": 2,
    "rounds_before_split": 0,
    # The examples are not images.
    "augmentation": "none",
    # The model has no normalisation.
    "personal_norm": "none",
    "normalize_by": "source",
    "statistics_of": "source",
    "adapted": "all",
  }
  return dataclasses.replace(
    defaults, **{k: v for k, v in values.items() if hasattr(defaults, k)}
  )


@functools.cache
def _functions(name, module):
  return algorithms.spec_builder(name, NUM_CLIENTS)(model(), hparams(name))


def functions(name: str) -> algorithm.AlgorithmSpec:
  """Returns the functions of an algorithm, of the contract's model."""
  # Another file may have been registered under this name.
  return _functions(name, algorithms.get(name))


def form(name: str) -> frozenset[Any]:
  """Returns the form of an algorithm: what the template finds in its file.

  These are the functions and values that it gives and those that it leaves at
  their defaults, the type of its data, and its requirements on an aggregator.

  Args:
    name: The name of the algorithm.
  """
  spec = functions(name)
  defaults = algorithm.AlgorithmSpec._field_defaults
  examples_type = spec.examples_type
  requirements = dataclasses.asdict(algorithms.requirements(name))
  return frozenset(
    [
      *(
        (field, value is defaults.get(field))
        for field, value in spec._asdict().items()
      ),
      examples_type and examples_type.python_container,
      *(need for need, reason in requirements.items() if reason),
    ]
  )


@functools.cache
def _parameters(names: tuple[str, ...]) -> list[Any]:
  seen, found = set(), []
  for name in names:
    new = form(name) - seen
    mark = pytest.mark.every_algorithm
    found.append(name if new else pytest.param(name, marks=mark))
    seen |= new
  return found


def parameters(names: Sequence[str]) -> list[Any]:
  """Returns algorithms as parameters of a test.

  Unmarked are those with anything in their form that none before them has: all
  that the template distinguishes is tested. The others are marked, for runs
  that test every algorithm.

  Args:
    names: The names of the algorithms.
  """
  return _parameters(tuple(names))
