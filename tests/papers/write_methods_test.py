"""Tests of the page of methods, held against the files themselves."""

import types

import pytest

from experiments.papers import write_methods
from tests.fixtures import tables
from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import factories

_TEXT = """Mean of two: a client averages two models.

Averaging Two (Doe, Roe; ICML 2030, arXiv:3001.01234), Algorithm 2, and what
else it has. A baseline of Another Paper (Poe; 2031, doi:10.1/x).

What leaves a client: the update of w. v stays. The head stays with it. In
plaintext, one sum.

Choices: none.
"""


def module(text=_TEXT, **names):
  found = types.ModuleType("mean_of_two", text)
  found.SCENARIOS = ("evolving", "guidance")
  found.HParams = hyperparameters.LocalHParams
  vars(found).update(names)
  return found


@pytest.mark.slow
def test_page_is_that_of_the_files(capsys):
  assert write_methods.main(["--check"]) == 0, capsys.readouterr().err


def test_entry_has_the_parts_of_the_docstring():
  found = write_methods.describe("mean_of_two", module())
  assert (found.title, found.summary) == (
    *("Mean of two", "a client averages two models."),
  )
  assert found.papers == (
    write_methods.Paper(
      *("Averaging Two", "Doe, Roe", "ICML 2030"),
      "https://arxiv.org/abs/3001.01234",
    ),
  )
  assert found.leaves == "The update of w. In plaintext, one sum."
  assert found.stays == "v stays. The head stays with it."
  assert found.scenarios == ("evolving", "guidance")
  names = "mean robust dp dp_ftrl secure compressed"
  assert found.aggregators == tuple(names.split())
  # A second paper follows an "and".
  first, second = write_methods.papers(
    "One (A; 2001, openreview:xy-Z_1), and Two\n(B, C; KDD 2002), both."
  )
  assert first.address == "https://openreview.net/forum?id=xy-Z_1"
  assert second == write_methods.Paper("Two", "B, C", "KDD 2002", "")


def test_aggregators_are_those_that_are_not_refused():
  needs = factories.AggregationRequirements(per_client_values="it compares")
  found = write_methods.describe(
    "mean_of_two", module(AGGREGATION_REQUIREMENTS=needs)
  )
  # secure and dp hide clients, compressed changes their values.
  assert found.aggregators == ("mean", "robust")
  assert found.refused == dict.fromkeys(
    ("dp", "dp_ftrl", "secure", "compressed"), "it compares"
  )


@pytest.mark.parametrize(
  "old, new, message",
  tables.cases("""
"Mean of two:", "Mean of two,"
    the first line must be 'Name:
"Averaging Two (Doe, Roe; ", "A method ("
    the second paragraph must
"What leaves a client:", "It sends"
    'What leaves a client:'; there are 0
"""),
)
def test_missing_part_is_refused_with_the_file(old, new, message, refusal):
  assert _TEXT.count(old) == 1
  changed = module(_TEXT.replace(old, new))
  told = refusal(write_methods.describe, "mean_of_two", changed)
  assert told.startswith("tff_shift/algorithms/mean_of_two.py: ")
  assert message in told


def test_outdated_page_is_named_and_written(tmp_path, capsys):
  page = tmp_path / write_methods.PAGE
  page.parent.mkdir(parents=True)
  assert write_methods.main(["--check"], tmp_path) == 1
  assert capsys.readouterr().err == (
    "methods.md is not up to date: run make index\n"
  )
  assert not page.exists()
  assert write_methods.main([], tmp_path) == 0
  assert write_methods.main(["--check"], tmp_path) == 0
  page.write_text("old")
  assert write_methods.main(["--check"], tmp_path) == 1


def test_page_has_each_reason_once():
  needs = factories.AggregationRequirements(
    no_clipping="it adds", per_client_values="it compares"
  )
  found = write_methods.describe(
    "mean_of_two", module(AGGREGATION_REQUIREMENTS=needs)
  )
  peers = {"peers": [{"name": n, "repository": n, "files": {}} for n in "ab"]}
  row = write_methods.page([found], peers | {"read": ""}).splitlines()[-1]
  assert row.endswith(
    "<br>Aggregators: `mean`; not `robust`, `dp`, `dp_ftrl`, `secure`,"
    " `compressed`: it adds |"
  )


def test_folder_without_the_documentation_is_refused(tmp_path, capsys):
  assert write_methods.main([], tmp_path) == 2
  assert "run it in a checkout" in capsys.readouterr().err
