"""A scenario of a user's own: a folder below 200 lines, and what it gets."""

import shlex

import numpy as np
import pytest

from examples.continual import continual
from tff_shift.binaries import report

_SMALL = shlex.split("""
  --num_domains=3 --num_clients=3 --local_steps=2 --learning_rate=0.05
  --noprogress --checkpoint_every=1
""")


@pytest.mark.long
def test_it_has_a_binary_resumption_table_figure_and_page(
  run_here, read_rows, read_runs, tmp_path, capsys
):
  def run(folder, *flags):
    output = f"--output_dir={tmp_path / folder}"
    arguments = [*_SMALL, "--algorithm=fed_avg,fed_rep", *flags, output]
    assert run_here(continual, arguments) == 0
    return read_rows(tmp_path / folder)

  whole = run("whole", "--seeds=0,1")
  header = capsys.readouterr().out.splitlines()[0].split()
  assert header == ["algorithm", "accuracy", "(%)", "forgetting", "s/round"]
  assert len(whole) == 2 * 2 * 3
  assert [row["domain"] for row in whole[:3]] == ["1", "2", "3"]
  assert (tmp_path / "whole" / "figures" / "accuracy_per_domain.png").is_file()
  # Forgetting by hand: the accuracy right after each domain, minus that after
  # the last one.
  then = [float(row["accuracy"]) for row in whole[:3]]
  last = float(whole[2]["mean_accuracy"])
  (found,) = (
    each
    for each in read_runs(tmp_path / "whole")
    if each["algorithm"] == "fed_avg"
  )
  metrics = found["metrics"]
  assert metrics["accuracy"]["seeds"][0] == pytest.approx(last)
  assert metrics["forgetting"]["seeds"][0] == pytest.approx(
    np.mean(then) - last
  )
  # Resumed with more seeds as if it had had them from the start.
  run("resumed", "--seeds=0")
  assert run("resumed", "--seeds=0,1", "--resume") == whole
  arguments = [str(tmp_path / "whole"), "--metrics=accuracy,forgetting"]
  arguments.append(f"--output_dir={tmp_path / 'page'}")
  assert run_here(report, arguments, takes_arguments=True) == 0
  page = (tmp_path / "page" / "report.html").read_text()
  assert "forgetting" in page


@pytest.mark.slow
def test_it_takes_three_classes_and_clients_without_examples_of_a_domain(
  run_here, read_rows, tmp_path
):
  rng = np.random.default_rng(0)
  path = tmp_path / "mine.npz"
  domain, client = np.arange(240) % 4, np.arange(240) // 4 % 3
  has_examples = (client != 1) | (domain != 1)
  y = rng.integers(0, 3, 240)
  arrays = {
    "x": rng.normal(size=(240, 3)).astype(np.float32) + 3 * np.eye(3)[y],
    "y": y,
    "domain": domain,
    "client": client,
  }
  np.savez(path, **{name: all_[has_examples] for name, all_ in arrays.items()})
  arguments = [*_SMALL, "--algorithm=fed_avg", f"--dataset={path}"]
  arguments += [f"--output_dir={tmp_path / 'run'}"]
  assert run_here(continual, arguments) == 0
  rows = read_rows(tmp_path / "run")
  assert len(rows) == 3
  assert all(0 <= float(row["accuracy"]) <= 100 for row in rows)


def test_wrong_flags_are_refused(refused):
  assert "--num_domains=0: it must be at least 1" in refused(
    continual, [*_SMALL, "--algorithm=fed_avg", "--num_domains=0"]
  )
