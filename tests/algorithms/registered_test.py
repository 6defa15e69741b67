"""Algorithms from files that live elsewhere."""

import pathlib
import sys

import pytest

from tests.fixtures import refusals
from tff_shift import algorithms
from tff_shift.learning import function_types

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "own_algorithm.py"
GOOD = EXAMPLE.read_text(encoding="utf-8")
# The hyper-parameter of the example.
FIELD = GOOD[GOOD.index("  server_rate") : GOOD.index("def build")]


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
  monkeypatch.setattr(algorithms, "_registered", {})


@pytest.fixture
def write(tmp_path):
  """Returns `write(name, text)`, which gives the path of a file."""

  def write(name, text=GOOD):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)

  return write


def test_load_algorithm_is_known_beside_those_of_the_package(write):
  own = algorithms.names()
  module = algorithms.load(write("mine.py"))
  assert set(algorithms.names()) == {*own, "mine"}
  assert list(algorithms.names()) == sorted(algorithms.names())
  assert algorithms.get("mine") is module
  assert "mine" in algorithms.names("evolving")
  assert "mine" not in algorithms.names("online_adaptation")


def test_load_module_that_python_can_import_will_do(
  write, tmp_path, monkeypatch
):
  write("a_folder_of_mine/an_algorithm.py")
  monkeypatch.syspath_prepend(str(tmp_path))
  algorithms.load("a_folder_of_mine.an_algorithm")
  assert "an_algorithm" in algorithms.names()


def test_load_file_that_has_changed_replaces_what_it_was(write, monkeypatch):
  # Within a second, and of the same size: Python would not see it.
  monkeypatch.setattr(sys, "dont_write_bytecode", False)
  path = write("mine.py")
  first = algorithms.load(path)
  assert algorithms.load(path) is first
  write("mine.py", GOOD.replace("1.0,", "0.5,"))
  assert algorithms.load(path) is not first
  assert algorithms.get("mine").HParams().server_rate == 0.5
  assert not list(pathlib.Path(path).parent.glob("__pycache__"))


def test_load_update_of_the_server_is_the_users(model, run_in_graph):
  module = algorithms.load(EXAMPLE)
  functions = module.build(model, module.HParams(server_rate=0.5))
  weights = run_in_graph(
    lambda w, u: functions.update_server(
      w, u, (), function_types.UpdateInfo(0)
    ),
    (1.0,),
    (4.0,),
  )
  assert weights == (3.0,)


@pytest.mark.slow
def test_number_of_clients_is_an_argument_for_who_takes_it(
  write, model, context
):
  module = algorithms.load(
    write(
      "mine.py",
      GOOD.replace(
        "build(model, hparams):", "build(model, hparams, num_clients):"
      ).replace(
        "_server=update_server)",
        "_server=update_server, max_clients=num_clients)",
      ),
    )
  )
  built = algorithms.build(module, model, num_clients=7)
  assert built.max_clients == 7
  with pytest.raises(ValueError, match=r"mine needs num_clients, the number"):
    algorithms.build(module, model)
  with pytest.raises(ValueError, match="num_clients=0 is not allowed"):
    algorithms.build(module, model, num_clients=0)


def refuse(path, message):
  with refusals.refused(f"^{path}.*{message}"):
    algorithms.load(path)
  assert "mine" not in algorithms.names()


@pytest.mark.parametrize(
  "old, new, message",
  [
    ("class HParams", "class Others", "there must be a class HParams"),
    (
      "@dataclasses.dataclass(frozen=True)",
      "@dataclasses.dataclass",
      "cannot inherit non-frozen",
    ),
    ("SCENARIOS = ", "OTHERS = ", "there must be SCENARIOS, .*evolving, guid"),
    ('"evolving", ', '"revolving", ', "there must be SCENARIOS"),
    ('"evolving", ', '["evolving"], ', "there must be SCENARIOS"),
    ("    1.0,", "    (1.0,),", "'server_rate' .* it is of type tuple"),
    (
      FIELD,
      "  server_rate: float = 1.0\n\n\n",
      "'server_rate' .* must come fr",
    ),
    (
      "def build(model, hparams)",
      "def build(model)",
      "a function build\\(model",
    ),
    ("SCENARIOS = ", "SCENARIOS == ", "NameError: name 'SCENARIOS'"),
    ("SCENARIOS = ", "SCENARIOS = (", "line [0-9]+: .* was never closed"),
    ("SCENARIOS = ", "import no_such_module\nS = ", "No module named 'no_su"),
    ("import dataclasses", "AGGREGATION_REQUIREMENTS = 3", "NameError"),
    (
      "def build(",
      "AGGREGATION_REQUIREMENTS = 3\ndef build(",
      "must be a factories.AggregationRequirements",
    ),
  ],
)
def test_refusals_say_in_one_line_what_is_missing(write, old, new, message):
  assert old in GOOD
  refuse(write("mine.py", GOOD.replace(old, new)), message)


def test_missing_file_is_named(tmp_path):
  refuse(str(tmp_path / "mine.py"), "there is no such file")


@pytest.mark.parametrize(
  "name, message",
  [
    ("fed_avg.py", "an algorithm 'fed_avg' already"),
    ("two/yours.py", "one/yours.py is an algorithm 'yours'"),
    # It makes no flag.
    ("My-Algorithm.py", "is not a valid name of an algorithm"),
  ],
)
def test_name_is_refused(write, name, message):
  algorithms.load(write("one/yours.py"))
  refuse(write(name), message)
