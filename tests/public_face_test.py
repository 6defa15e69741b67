"""The names of `import tff_shift as ts`."""

import doctest
import inspect
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import tff_shift as ts
from tff_shift import algorithms
from tff_shift.command_line import write_index
from tff_shift.data import datasets
from tff_shift.learning import metrics

_ROOT = pathlib.Path(__file__).parents[1]
_PAGE = _ROOT / "docs/reference/library.md"
_RUNS = _ROOT / "results/raw/demo_mnist_5k.tar.xz"


def test_the_page_has_each_name_and_no_other():
  table = re.findall(
    r"^\| [a-z ]+ \| (`.*) \|$", _PAGE.read_text(), re.MULTILINE
  )
  assert sorted(re.findall(r"`(\w+)`", " ".join(table))) == ts.__all__


def test_each_name_is_there():
  for name in ts.__all__:
    assert getattr(ts, name) is getattr(ts, name)
  with pytest.raises(AttributeError, match="no attribute 'buld_model'"):
    _ = ts.buld_model


def test_the_stub_has_each_name():
  assert write_index.STUB.read_text() == write_index.stub()


def test_what_lists_names_needs_no_tensorflow():
  program = (
    "import sys; import tff_shift as ts; dir(ts); ts.datasets.names();"
    " assert 'fed_avg' in ts.algorithm_names() and 'mlp' in ts.model_names();"
    " sys.exit('tensorflow' in sys.modules)"
  )
  subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture
def folder(name, tmp_path, monkeypatch):
  """An empty folder; for `read_run`, a run folder."""
  # Examples register files, which later tests must not see.
  monkeypatch.setattr(algorithms, "_registered", {})
  monkeypatch.setattr(metrics, "_registered", {})
  monkeypatch.setattr(datasets, "_registered", {})
  if name != "read_run":
    return tmp_path
  shutil.unpack_archive(_RUNS, tmp_path)
  return next(tmp_path.glob("*/fed_avg"))


TRAINING = "run_", "load", "Adapter", "pretrain", "as_learn"


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(n, marks=[pytest.mark.slow] * n.startswith(TRAINING))
    for n in ts.__all__
  ],
)
def test_examples_of_docstrings(name, folder):
  """Runs the `>>>` lines with `ts`, `np`, `pd` and an empty `folder`."""
  if name == "from_huggingface":
    pytest.importorskip(
      "datasets", reason="the extra huggingface is not installed"
    )
  names = {"ts": ts, "np": np, "pd": pd, "folder": folder}
  test = doctest.DocTestParser().get_doctest(
    inspect.getdoc(getattr(ts, name)) or "", names, f"ts.{name}", None, None
  )
  assert test.examples, f"the docstring of ts.{name} has no example"
  runner = doctest.DocTestRunner(
    optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
  )
  report = []
  runner.run(test, out=report.append)
  assert not runner.failures, "".join(report)


def examples(seed, size=12):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(size, 5)).astype(np.float32), np.arange(size) % 2


@pytest.mark.slow
def test_a_program_on_arrays(context):
  clients = ts.from_arrays(
    "evolving",
    [
      [examples(10 * client + domain) for domain in range(3)]
      for client in (0, 1)
    ],
  )
  model = ts.build_model(
    "mlp", input_shape=(5,), num_classes=2, input_dtype=np.float32, width=4
  )
  algorithm = ts.build_algorithm(
    "fed_avg",
    model,
    ts.hparams("fed_avg", batch_size=4),
    num_evaluation_domains=3,
  )
  result = ts.run_evolving(algorithm, clients, num_rounds=1, run_seed=0)
  assert result.evaluations[-1].round_num == 1
  # They fit on a screen, whatever weights and states they hold.
  for each in (algorithm, result):
    assert 20 < len(repr(each)) < 800 and "array" not in repr(each)


def test_wrong_names_are_refused(refusal):
  line = refusal(ts.from_arrays, "online", [])
  assert "scenario='online' is not allowed: it must be one of" in line
  line = refusal(ts.hparams, "fed_avg", learning_rat=1.0)
  assert "fed_avg has no hyper-parameter 'learning_rat'" in line
  assert "learning_rate" in line
  assert "batch_size" in refusal(ts.hparams, "fed_avg", batch_size=0)
