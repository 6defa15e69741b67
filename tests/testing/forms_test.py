"""Which algorithms `make test` runs the contract over."""

import pathlib

from tff_shift import algorithms
from tff_shift.testing import forms

GOOD = pathlib.Path(__file__).parents[2] / "examples" / "own_algorithm.py"


def always_tested(names):
  return [each for each in forms.parameters(names) if isinstance(each, str)]


def test_all_that_forms_have_is_always_tested():
  names = algorithms.names()
  tested = always_tested(names)
  assert len(tested) < len(names)
  one, other = (set().union(*map(forms.form, e)) for e in (tested, names))
  assert one == other


def test_algorithm_with_something_new_in_its_form_is_among_them(
  monkeypatch, tmp_path
):
  monkeypatch.setattr(algorithms, "_registered", {})
  algorithms.load(GOOD)
  copy = tmp_path / "own_copy.py"
  copy.write_text(GOOD.read_text(encoding="utf-8"))
  algorithms.load(copy)
  names = ["fed_avg", "fed_prox", "own_algorithm", "own_copy"]
  assert always_tested(names) == ["fed_avg", "own_algorithm"]
