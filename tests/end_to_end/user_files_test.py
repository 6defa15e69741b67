"""Models and algorithms of a user's own files, from the command line."""

import pathlib
import re
import shlex
import shutil

import pytest

from tff_shift import algorithms
from tff_shift.binaries import evolving

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
TINY = shlex.split("""
  --dataset=circle --rounds=2 --num_clients=2 --num_domains=3
  --max_examples_per_domain=12 --batch_size=4
""")


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
def test_files_of_a_user_run_and_resume(
  files, run_whole, run_here, read_runs, read_rows, capsys
):
  (files / "mine.flags").write_text(f"--import={files}/own_algorithm.py\n")
  folder = files / "run"
  arguments = [
    f"--flagfile={files}/mine.flags",
    # A value behind a blank, before a flag that is known only then.
    "--algorithm",
    "fed_avg,own_algorithm",
    "--server_rate=1,0.5",
    *TINY,
    *(f"--model={files}/mine.py:build", "--model_width=5"),
    f"--output_dir={folder}",
  ]
  output = run_whole(evolving, arguments)
  plain, same, halved = read_runs(folder)
  assert [plain["algorithm"], same["algorithm"]] == ["fed_avg", "own_algorithm"]
  assert plain["setting"]["model"] == "mine:build"
  # A rate of 1 is FedAvg, bit for bit.
  losses = {
    rate: [
      row["client_loss"]
      for row in read_rows(folder)
      if row["server_rate"] == rate
    ]
    for rate in ("", "1.0", "0.5")
  }
  assert losses[""] == losses["1.0"] != losses["0.5"]
  assert halved["setting"]["server_rate"] == 0.5
  assert "own_algorithm" in output

  # Another version of a file is another run.
  for name, flag in (("own_algorithm.py", "import"), ("mine.py", "model")):
    before = (files / name).read_text()
    (files / name).write_text(before + "# Another version.\n")
    assert run_here(evolving, [*arguments, "--resume"]) == 2
    errors = capsys.readouterr().err
    assert f"--{flag} (SHA-256) was " in errors
    assert errors.count("\n") == 1
    (files / name).write_text(before)
  run_whole(evolving, [*arguments, "--resume"])
  assert read_runs(folder) == [plain, same, halved]


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--import={files}/no.py"], "--import: {files}/no.py: there is no such"),
    (["--import={files}/mine.py"], "--import: {files}/mine.py: there must be"),
    (["--import"], "Missing value for flag --import"),
    (["--import={files}/fed_avg.py"], "algorithm 'fed_avg' already"),
    (
      ["--import={files}/clash.py"],
      "'rounds' of clash has the name of another",
    ),
    (
      ["--import={files}/other_type.py"],
      "'batch_size' of other_type is of type float, but of apfl of type int",
    ),
    (["--flagfile={files}/no.flags"], "Unable to open flagfile"),
    (["--model={files}/mine.py:no"], "there is no function 'no'"),
    (["--model={files}/no.py:build"], "there is no such file"),
    (["--model=no_model"], "--model=no_model: unknown model 'no_model'"),
  ],
)
def test_wrong_file_is_named_in_one_line(files, refused, arguments, message):
  text = (files / "own_algorithm.py").read_text()
  for name, old, new in (
    ("fed_avg.py", "", ""),
    ("clash.py", "server_rate: float", "rounds: float"),
    ("other_type.py", "server_rate: float", "batch_size: float"),
  ):
    (files / name).write_text(text.replace(old, new))
  given = [each.format(files=files) for each in arguments]
  line = refused(evolving, ["--algorithm=fed_avg", *TINY, *given])
  assert message.format(files=files) in line


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
  ("where", "statement", "code", "message"),
  [
    ("file", "import sys; sys.exit()", 2, "it ends the process (sys.exit)"),
    ("file", "raise KeyboardInterrupt", 130, "interrupted before anything"),
    (
      "hparams",
      "check_together = lambda _: 1 / 0",
      2,
      "ZeroDivisionError: div",
    ),
    ("work", "exit(0)", 2, "it ends the process (sys.exit)"),
    ("work", "raise KeyboardInterrupt", 130, "interrupted; files written"),
    ("update_server", "weights[99]", 2, "IndexError: tuple index out of"),
    ("update_server", "tf.ones(2) + tf.ones(3)", 2, "Dimensions must be equal"),
    (
      "work",
      "return 3",
      2,
      "must return an algorithm.AlgorithmSpec; it returned int",
    ),
  ],
)
def test_whatever_a_file_raises_is_told_of_it(
  files, run_evolving, capsys, where, statement, code, message
):
  path = files / "own_algorithm.py"
  text = _broken(path.read_text(), where, statement)
  path.write_text(text)
  given = [f"--import={path}", "--algorithm=own_algorithm", *TINY]
  given.append(f"--output_dir={files / 'run'}")
  assert run_evolving(given) == code
  (line,) = capsys.readouterr().err.splitlines()
  number = 1 + text[: text.index(statement)].count("\n")
  if statement != "return 3":
    assert f"{path}: line {number}: " in line
  assert f"{path}: " in line and message in line


def test_help_lists_what_an_import_brings(files, run_evolving, capsys):
  path = files / "own_algorithm.py"
  assert run_evolving([f"--import={path}", "--help"]) == 0
  output = capsys.readouterr().out
  assert "--server_rate:" in output
  assert re.search(r"\w, own_algorithm[,.]", " ".join(output.split()))
