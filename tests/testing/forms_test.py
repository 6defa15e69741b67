"""Which algorithms `make test` runs the contract over."""

import pathlib

import pytest

from tff_shift import algorithms
from tff_shift.testing import forms

GOOD = pathlib.Path(__file__).parents[2] / "examples" / "own_algorithm.py"


def always_tested(names):
  return [each for each in forms.parameters(names) if isinstance(each, str)]


@pytest.fixture
def nothing_stays(monkeypatch):
  monkeypatch.setattr(algorithms, "_registered", {})


def test_each_form_has_one_algorithm_that_is_always_tested():
  names = algorithms.names()
  found = list(map(forms.form, always_tested(names)))
  assert len(found) == len(set(found)) < len(names)
  assert set(found) == set(map(forms.form, names))


def test_algorithm_of_a_new_form_is_among_them(nothing_stays, tmp_path):
  own = algorithms.names()
  algorithms.load(GOOD)
  copy = tmp_path / "own_copy.py"
  copy.write_text(GOOD.read_text(encoding="utf-8"))
  algorithms.load(copy)
  new = set(always_tested(algorithms.names())) - set(always_tested(own))
  assert new == {"own_algorithm"}
