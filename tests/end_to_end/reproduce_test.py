"""A table that is reproduced by the real binary, killed, and resumed."""

import dataclasses
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from experiments import reproduce
from experiments.papers import running

pytestmark = pytest.mark.long

_TABLE = """
name = "mine/1"
title = "Mine"
binary = "evolving"
seeds = [0, 1]
[ours]
datasets = ["rotated_digits"]
methods = ["fed_avg"]
metrics = ["accuracy"]
settings.dirichlet = ["inf"]
settings.evaluated = ["client", "server"]
[settings.dirichlet]
flag = "dirichlet"
[settings.evaluated]
[datasets.rotated_digits]
flags = { model = "mlp", model_width = 4, num_clients = 2, num_domains = 4, max_examples_per_domain = 80, rounds = 4, local_steps = 1, learning_rate = 0.1, evaluate_every = 1, checkpoint_every = 1 }
[methods.fed_avg]
label = "FedAvg"
algorithm = "fed_avg"
[metrics.accuracy]
label = "accuracy"
reads = "{evaluated}_accuracy"
"""  # noqa: E501 (an inline table has one line)


def _kill_once_saved(folder, processes):
  """Kills a binary as soon as it has saved something."""
  while not (processes and any(folder.glob("*/*/checkpoints/**/*"))):
    time.sleep(0.01)
  processes[-1].send_signal(signal.SIGKILL)


@pytest.fixture
def reproduced(monkeypatch, run_here, tmp_path):
  """Returns `run(*arguments)`, which gives the exit code and the contents."""
  (tmp_path / "mine.toml").write_text(_TABLE)
  written = []
  page = types.ModuleType("tff_shift.reporting.pages.page")
  page.write = lambda contents, folder: written.append(contents)
  monkeypatch.setitem(sys.modules, page.__name__, page)
  monkeypatch.setattr("tff_shift.reporting.pages.page", page, raising=False)

  def run(*arguments):
    given = tmp_path / "mine.toml", *arguments
    code = run_here(reproduce, given, takes_arguments=True)
    return code, written[-1]

  return run


def _comparable(contents):
  """Contents without times and places."""
  return dataclasses.replace(
    contents,
    command="",
    date="",
    cells=[
      dataclasses.replace(
        cell,
        run=dataclasses.replace(cell.run, seconds=None, command=""),
        budget=dataclasses.replace(cell.budget, seconds_per_round=None),
      )
      for cell in contents.cells
    ],
  )


def test_killed_job_is_resumed_by_its_line_and_collected(
  reproduced, tmp_path, monkeypatch, capfdbinary
):
  run = reproduced
  code, whole = run("--full", f"--output_dir={tmp_path}/whole")
  assert code == 0
  assert len(whole.cells) == 2 and all(c.by_seed for c in whole.cells)
  # An iteration of each of the three source domains.
  assert [c.budget.num_gradients for c in whole.cells] == [3.0, 3.0]
  processes = []
  start = running.subprocess.Popen

  def popen(*arguments, **options):
    processes.append(start(*arguments, **options))
    return processes[-1]

  monkeypatch.setattr(running.subprocess, "Popen", popen)
  folder = f"--output_dir={tmp_path}/killed"
  threading.Thread(
    target=_kill_once_saved, args=[tmp_path / "killed", processes]
  ).start()
  code, first = run("--full", folder)
  assert code == 3
  assert "ended by SIGKILL" in first.problems[0]
  monkeypatch.setattr(running.subprocess, "Popen", start)
  capfdbinary.readouterr()
  assert run("--print_jobs", folder)[0] == 0
  (line,) = capfdbinary.readouterr().out.decode().splitlines()
  done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
  assert b"client accuracy" in done.stdout
  code, joined = run("--resume", folder)
  assert code == 0
  assert len(processes) == 1
  assert _comparable(joined) == _comparable(whole)
