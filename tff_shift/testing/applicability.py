"""Which tests of the contract apply to an algorithm, told by its file alone.

A test of what an algorithm does not have is not run: nobody skips it.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tff_shift import algorithms
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.testing import forms


def applies_if(*conditions: Callable[..., bool]) -> Callable[[Any], Any]:
  """Restricts a test, or the tests of a class, to some algorithms.

  Args:
    *conditions: All must be true of the algorithm's name; they get the other
      parameters of the test by their names.

  Returns:
    A decorator.
  """

  def restrict(test):
    test.conditions = conditions
    return test

  return restrict


def _applies(item: Any) -> bool:
  if not hasattr(item, "callspec") or "built" not in item.callspec.params:
    return True
  parameters = dict(item.callspec.params)
  name = parameters.pop("built")
  conditions = (
    *getattr(item.cls, "conditions", ()),
    *getattr(item.obj, "conditions", ()),
  )
  try:
    return all(condition(name, **parameters) for condition in conditions)
  except Exception:
    return True  # The test tells what is wrong with the algorithm.


def leave_out(config: pytest.Config, items: list[Any]) -> None:
  """Leaves out what does not apply; for `pytest_collection_modifyitems`."""
  kept, left_out = [], []
  for item in items:
    (kept if _applies(item) else left_out).append(item)
  items[:] = kept
  config.hook.pytest_deselected(items=left_out)


def has_phases(name: str) -> bool:
  """Whether a round has a phase."""
  functions = forms.functions(name)
  return bool(
    functions.surveys or functions.train_client or functions.personalize_client
  )


def trains(name: str) -> bool:
  """Whether clients train on batches."""
  return hasattr(algorithms.get(name).HParams(), "batch_size")


def has_weights(name: str) -> bool:
  """Whether there are weights, shared or trained."""
  is_local = has_phases(name) and algorithms.requirements(name).no_aggregation
  return trains(name) or not is_local


def has_client_weights(name: str) -> bool:
  """Whether clients can be weighted."""
  return hasattr(algorithms.get(name).HParams(), "client_weighting")


def has_server_predictions(name: str) -> bool:
  """Whether the server has a model of its own."""
  return forms.functions(name).predict_as_server is not None


def answers_requests(name: str) -> bool:
  """Whether clients can request a state."""
  return forms.functions(name).answer_request is not None


def allows_padding(name: str) -> bool:
  """Whether clients' data may have rows that are no examples."""
  return algorithm_lib.allow_padding(forms.functions(name))


def has_domains(name: str) -> bool:
  """Whether clients' data have domains."""
  return forms.functions(name).examples_type is None


def has_no_tasks(name: str) -> bool:
  """Whether domains are not learned one after the other, by their numbers."""
  return not hasattr(algorithms.get(name).HParams(), "task_rounds")


def is_of(scenario: str) -> Callable[[str], bool]:
  """Returns whether algorithms are of a scenario."""
  return lambda name: scenario in algorithms.get(name).SCENARIOS
