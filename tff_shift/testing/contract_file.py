"""Checks of an algorithm's file, and refusals of its hyper-parameters."""

import ast
import dataclasses
import importlib
import inspect
import math

import pytest
from absl.testing import flagsaver

from tff_shift import algorithms
from tff_shift import scenarios
from tff_shift.testing import forms


class TestCode:
  def test_tensors_are_not_compared_by_identity(self, algorithm_name):
    # In a TFF computation `a == b` tests whether two tensors are the same
    # object, and is False. Only strings and lengths may be compared so.
    tree = ast.parse(inspect.getsource(algorithms.get(algorithm_name)))
    for node in ast.walk(tree):
      if isinstance(node, ast.Compare) and any(
        isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops
      ):
        sides = [node.left, *node.comparators]
        assert any(
          (isinstance(side, ast.Constant) and isinstance(side.value, str))
          or (isinstance(side, ast.Call) and ast.unparse(side.func) == "len")
          for side in sides
        ), f"line {node.lineno}: {ast.unparse(node)}; use tf.equal"


def bad_values(field):
  limits = field.metadata
  if limits["choices"]:
    return ["nonsense", "", 1, None]
  values = ["1", None, math.nan, math.inf]
  if isinstance(field.default, bool):
    return [*values, 1]
  if isinstance(field.default, int):
    values += [1.5, True]
  if limits["minimum"] is not None:
    values.append(limits["minimum"] - 1)
    if limits["exclusive_minimum"]:
      values.append(limits["minimum"])
  if limits["maximum"] is not None:
    values.append(limits["maximum"] + 1)
  return values


class TestHyperParameters:
  def test_have_help_and_limits(self, algorithm_name):
    for field in dataclasses.fields(algorithms.get(algorithm_name).HParams):
      limits = field.metadata
      assert limits["help"].endswith("."), field.name
      assert len(limits["help"]) > 10, field.name
      if limits["choices"]:
        assert field.default in limits["choices"], field.name
      elif not isinstance(field.default, bool):
        assert limits["minimum"] is not None, field.name

  def test_names_differ_from_those_of_flags(self, algorithm_name):
    # Every binary of its scenarios would refuse it.
    for scenario in algorithms.get(algorithm_name).SCENARIOS:
      binary = importlib.import_module(
        f"{scenarios.__name__}.{scenario}.configuration"
      )
      with flagsaver.flagsaver():
        binary.Configuration.define_flags()

  def test_bad_values_are_refused_in_one_line(self, algorithm_name, model):
    module = algorithms.get(algorithm_name)
    for field in dataclasses.fields(module.HParams):
      for value in bad_values(field):
        hparams = dataclasses.replace(module.HParams(), **{field.name: value})
        with pytest.raises(ValueError, match=field.name) as error:
          algorithms.build(
            module, model, hparams, num_clients=forms.NUM_CLIENTS
          )
        message = str(error.value)
        assert "\n" not in message
        assert repr(value) in message
        assert "must be" in message
