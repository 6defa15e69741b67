"""The contract over the file of a user."""

import importlib.util
import pathlib

import pytest

from tff_shift import algorithms
from tff_shift.testing import __main__ as contract

TESTS = pathlib.Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"
GOOD = EXAMPLES / "own_algorithm.py"
USER_FILES = TESTS / "user_files"


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
  monkeypatch.setattr(algorithms, "_registered", {})
  # It is for the tests of the one who looks at this test.
  monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


@pytest.mark.slow
class TestContract:
  def run(self, path, chosen):
    return contract.main([str(path), "-q", "-k", chosen])

  def test_is_kept_by_a_good_algorithm(self, capfd):
    assert self.run(GOOD, "TestForm or TestCode or Hyper") == 0
    output = capfd.readouterr().out
    assert " passed" in output
    assert "fail" not in output

  # Personal state, the number of clients, surveys and memory at the server.
  @pytest.mark.long
  @pytest.mark.parametrize(
    "path",
    [
      EXAMPLES / "control_variates.py",
      pytest.param(
        USER_FILES / "surveys.py", marks=pytest.mark.every_algorithm
      ),
    ],
  )
  def test_is_kept_whole_by_algorithms_with_many_parts(self, path, capfd):
    assert contract.main([str(path), "-q"]) == 0
    assert " passed" in capfd.readouterr().out

  def test_is_broken_by_a_bad_algorithm(self, capfd):
    chosen = "TestPrivacyByType or same_seeds or resumed_run"
    assert self.run(USER_FILES / "leaks_and_draws.py", chosen) == 1
    failed = [
      line.partition("::")[2]
      for line in capfd.readouterr().out.splitlines()
      if line.startswith("FAILED")
    ]
    assert {each.split("::")[1].split("[")[0] for each in failed} == {
      "test_no_example_reaches_the_server",
      "test_same_seeds_give_the_same_bits",
      "test_resumed_run_gives_the_same_bits",
    }
    assert all("[leaks_and_draws]" in each for each in failed)

  def test_hyper_parameter_with_the_name_of_a_flag_breaks_it(
    self, tmp_path, capfd
  ):
    path = tmp_path / "counts_rounds.py"
    path.write_text("""
import dataclasses
from tff_shift.algorithms import fed_avg
from tff_shift.learning import hyperparameters

SCENARIOS = ("evolving",)
build = fed_avg.build

@dataclasses.dataclass(frozen=True)
class HParams(fed_avg.HParams):
  rounds: int = hyperparameters.hparam(1, "Rounds of its own.", minimum=1)
""")
    assert self.run(path, "test_names_differ") == 1
    output = capfd.readouterr().out
    assert "'rounds' of counts_rounds has the name of another flag" in output


class TestUsage:
  def refuse(self, capsys, arguments, message):
    assert contract.main(arguments) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("tff_shift.testing: ")
    assert message in errors
    assert errors.count("\n") == 1

  @pytest.mark.parametrize(
    "arguments, message",
    [
      ([], "name the file of an algorithm"),
      (["-q"], "name the file of an algorithm"),
      (["no_such_file.py"], "there is no such file"),
      ([__file__], "HParams"),
    ],
  )
  def test_wrong_file_is_named_in_one_line(self, capsys, arguments, message):
    self.refuse(capsys, arguments, message)

  @pytest.mark.slow
  def test_missing_pytest_is_named_in_one_line(self, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    self.refuse(capsys, ["mine.py"], "pip install pytest")
