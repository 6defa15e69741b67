"""Models and algorithms of a user's own files, from the command line."""

import pathlib
import re
import shutil

import pytest

from tests.fixtures import tables
from tff_shift import algorithms

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
TINY = """
  --dataset=circle --rounds=2 --num_clients=2 --num_domains=3
  --max_examples_per_domain=12 --batch_size=4
"""


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
  monkeypatch.setattr(algorithms, "_registered", {})


@pytest.fixture
def files(tmp_path):
  """A folder with the example and a model that can be changed."""
  shutil.copy(EXAMPLES / "own_algorithm.py", tmp_path)
  (tmp_path / "mine.py").write_text(
    "import tensorflow as tf\n"
    "def build(input_shape, num_classes, width=4):\n"
    "  layers = tf.keras.layers\n"
    "  return tf.keras.Sequential([layers.InputLayer(input_shape),\n"
    "    layers.Dense(width, 'relu'), layers.Dense(num_classes)])\n"
  )
  return tmp_path


@pytest.mark.long
def test_files_of_a_user_run_and_resume(files, run):
  (files / "mine.flags").write_text(f"--import={files}/own_algorithm.py\n")
  given = (
    *("evolving", f"--flagfile={files}/mine.flags"),
    # A value behind a blank, before a flag that is known only then.
    *("--algorithm", "fed_avg,own_algorithm", "--server_rate=1,0.5", TINY),
    f"--model={files}/mine.py:build --model_width=5",
  )
  ended = run(*given, errors="")
  plain, same, halved = ended.runs
  assert [plain["algorithm"], same["algorithm"]] == ["fed_avg", "own_algorithm"]
  assert plain["setting"]["model"] == "mine:build"
  # A rate of 1 is FedAvg, bit for bit.
  losses = {
    rate: [
      row["client_loss"] for row in ended.rows if row["server_rate"] == rate
    ]
    for rate in ("", "1.0", "0.5")
  }
  assert losses[""] == losses["1.0"] != losses["0.5"]
  assert halved["setting"]["server_rate"] == 0.5
  assert "own_algorithm" in ended.output

  # Another version of a file is another run.
  for name, flag in (("own_algorithm.py", "import"), ("mine.py", "model")):
    before = (files / name).read_text()
    (files / name).write_text(before + "# Another version.\n")
    errors = run(*given, "--resume", code=2).errors
    assert f"--{flag} (SHA-256) was " in errors
    assert errors.count("\n") == 1
    (files / name).write_text(before)
  resumed = run(*given, "--resume", errors="")
  assert resumed.runs == [plain, same, halved]


@pytest.mark.parametrize(
  "given, messages",
  tables.rows("""
--import={files}/no.py
    --import: {files}/no.py: there is no such
--import={files}/mine.py
    --import: {files}/mine.py: there must be
--import
    Missing value for flag --import
--import={files}/fed_avg.py
    algorithm 'fed_avg' already
--import={files}/clash.py
    'rounds' of clash has the name of another
--import={files}/other_type.py
    'batch_size' of other_type is of type float, but of apfl of type int
--flagfile={files}/no.flags
    Unable to open flagfile
--model={files}/mine.py:no
    there is no function 'no'
--model={files}/no.py:build
    there is no such file
--model=no_model
    --model=no_model: unknown model 'no_model'
"""),
)
def test_wrong_file_is_named_in_one_line(files, refused, given, messages):
  text = (files / "own_algorithm.py").read_text()
  for name, old, new in (
    ("fed_avg.py", "", ""),
    ("clash.py", "server_rate: float", "rounds: float"),
    ("other_type.py", "server_rate: float", "batch_size: float"),
  ):
    (files / name).write_text(text.replace(old, new))
  flags = "--algorithm=fed_avg", TINY, given.format(files=files)
  assert messages[0].format(files=files) in refused("evolving", flags)


def _broken(text, where, statement):
  """Returns the example with a statement at the begin of one of its parts."""
  mark, indent = {
    "file": ("import dataclasses\n", ""),
    "work": ('another server step."""\n', "  "),
    "update_server": ("    del plaintext_sum, info\n", "    "),
    "hparams": ('and the server\'s learning rate."""\n', "  "),
  }[where]
  assert text.count(mark) == 1
  return text.replace(mark, f"{mark}{indent}{statement}\n")


@pytest.mark.parametrize(
  "where, statement, code, message",
  tables.cases("""
"file", "import sys; sys.exit()", 2
    it ends the process (sys.exit)
"file", "raise KeyboardInterrupt", 130
    interrupted before anything
"hparams", "check_together = lambda _: 1 / 0", 2
    ZeroDivisionError: div
"work", "exit(0)", 2
    it ends the process (sys.exit)
"work", "raise KeyboardInterrupt", 130
    interrupted; files written
"update_server", "weights[99]", 2
    IndexError: tuple index out of
"update_server", "tf.ones(2) + tf.ones(3)", 2
    Dimensions must be equal
"work", "return 3", 2
    must return an algorithm.AlgorithmSpec; it returned int
"""),
)
def test_whatever_a_file_raises_is_told_of_it(
  files, run, where, statement, code, message
):
  path = files / "own_algorithm.py"
  text = _broken(path.read_text(), where, statement)
  path.write_text(text)
  flags = f"--import={path} --algorithm=own_algorithm {TINY}"
  (line,) = run("evolving", flags, code=code).errors.splitlines()
  number = 1 + text[: text.index(statement)].count("\n")
  if statement != "return 3":
    assert f"{path}: line {number}: " in line
  assert f"{path}: " in line and message in line


def test_help_lists_what_an_import_brings(files, run):
  output = run(
    "evolving", f"--import={files}/own_algorithm.py --help=all"
  ).output
  assert "--server_rate:" in output
  assert re.search(r"\w, own_algorithm[,.]", " ".join(output.split()))
