"""What every algorithm's file says.

A new file in `tff_shift/algorithms` is tested here without a change.
"""

import inspect
import pathlib
import re

import pytest

from tff_shift import algorithms
from tff_shift.models.networks import mlp
from tff_shift.testing import forms


def test_names_are_those_of_the_files():
  folder = pathlib.Path(algorithms.__file__).parent
  files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
  assert set(algorithms.names()) == files
  assert {"fed_avg", "fed_evolve", "fed_evp"} <= files


def test_unknown_name_is_refused_with_those_that_there_are():
  with pytest.raises(ValueError, match=r"'fed_up'.*fed_avg, fed_avg_ft"):
    algorithms.get("fed_up")


@pytest.mark.parametrize("name", algorithms.names())
def test_file_docstring_names_paper_and_what_leaves_a_client(name):
  docstring = inspect.getdoc(algorithms.get(name))
  title, empty, *_ = docstring.splitlines()
  assert title.endswith(".")
  assert not empty
  # Where in which paper, or when it appeared, perhaps with a link.
  assert re.search(
    r"(Algorithm|Section|Table) \d"
    r"|;\s([^();]+\s)?(19|20)\d\d(,\s\w+:\S+)?\)",
    docstring,
  )
  assert algorithms.get(name).SCENARIOS
  assert re.search(r"^What leaves a client: \w", docstring, re.MULTILINE)


@pytest.mark.slow
def test_model_without_a_guide_is_refused_by_whoever_needs_one():
  plain = mlp.build((5,), num_classes=3, width=8, head_width=6)
  refused = []
  for name in algorithms.names():
    try:
      build = algorithms.spec_builder(name, forms.NUM_CLIENTS)
      build(plain, forms.hparams(name))
    except ValueError as error:
      assert f"has no guide, which {name} needs" in str(error)
      refused.append(name)
  assert "fed_drm" in refused
