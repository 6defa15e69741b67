"""What every algorithm's file says, and what its hyper-parameters refuse.

A new file in `tff_shift/algorithms` is tested here without a change.
"""

import ast
import dataclasses
import inspect
import math
import pathlib
import re

import pytest

from tff_shift import algorithms


class TestNames:
  def test_names_are_those_of_the_files(self):
    folder = pathlib.Path(algorithms.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert set(algorithms.names()) == files
    assert {"fed_avg", "fed_evolve", "fed_evp"} <= files

  def test_unknown_name_is_refused_with_those_that_there_are(self):
    with pytest.raises(ValueError, match=r"'fed_up'.*fed_avg, fed_avg_ft"):
      algorithms.get("fed_up")


@pytest.mark.parametrize("name", algorithms.names())
class TestFile:
  def test_docstring_names_paper_and_what_leaves_a_client(self, name):
    docstring = inspect.getdoc(algorithms.get(name))
    title, empty, *_ = docstring.splitlines()
    assert title.split(":")[0].lower() == name.replace("_", "")
    assert title.endswith(".")
    assert not empty
    # Where in which paper, or when it appeared.
    assert re.search(r"(Algorithm|Section|Table) \d|; (19|20)\d\d\)", docstring)
    assert algorithms.get(name).SCENARIOS
    assert re.search(r"^What leaves a client: \w", docstring, re.MULTILINE)

  def test_is_short_enough_to_read(self, name):
    source = inspect.getsource(algorithms.get(name))
    assert len(source.splitlines()) <= 250

  def test_tensors_are_not_compared_by_identity(self, name):
    # In a TFF computation `a == b` asks whether two tensors are one, and is
    # False. What may be compared so are strings and lengths.
    tree = ast.parse(inspect.getsource(algorithms.get(name)))
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


def hyperparameters():
  return [
    pytest.param(name, field, id=f"{name}-{field.name}")
    for name in algorithms.names()
    for field in dataclasses.fields(algorithms.get(name).HParams)
  ]


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


@pytest.mark.parametrize(("name", "field"), hyperparameters())
class TestHyperParameters:
  def test_has_help_and_limits(self, name, field):
    help_text = field.metadata["help"]
    assert help_text.endswith(".")
    assert len(help_text) > 10
    if field.metadata["choices"]:
      assert field.default in field.metadata["choices"]
    elif not isinstance(field.default, bool):
      assert field.metadata["minimum"] is not None

  def test_bad_value_is_refused_in_one_line(self, name, field, model):
    module = algorithms.get(name)
    for value in bad_values(field):
      hparams = dataclasses.replace(module.HParams(), **{field.name: value})
      with pytest.raises(ValueError, match=field.name) as error:
        algorithms.build(module, model, hparams)
      message = str(error.value)
      assert "\n" not in message
      assert repr(value) in message
      assert "must be" in message
