"""A scenario of a user's own: a folder below 200 lines, and what it gets."""

import numpy as np
import pytest

from examples.continual import continual

_SMALL = """
  --num_domains=3 --num_clients=3 --local_steps=2 --learning_rate=0.05
  --noprogress --checkpoint_every=1
"""


@pytest.mark.long
def test_it_has_a_binary_resumption_table_figure_and_page(run):
  given = continual, _SMALL, "--algorithm=fed_avg,fed_rep"
  ended = run(*given, "--seeds=0,1")
  whole = ended.rows
  header = ended.output.splitlines()[0].split()
  assert header == ["algorithm", "accuracy", "(%)", "forgetting", "s/round"]
  assert len(whole) == 2 * 2 * 3
  assert [row["domain"] for row in whole[:3]] == ["1", "2", "3"]
  assert "accuracy_per_domain" in ended.figures
  # Forgetting by hand: the accuracy right after each domain, minus that after
  # the last one.
  then = [float(row["accuracy"]) for row in whole[:3]]
  last = float(whole[2]["mean_accuracy"])
  (found,) = (each for each in ended.runs if each["algorithm"] == "fed_avg")
  metrics = found["metrics"]
  assert metrics["accuracy"]["seeds"][0] == pytest.approx(last)
  assert metrics["forgetting"]["seeds"][0] == pytest.approx(
    np.mean(then) - last
  )
  # Resumed with more seeds as if it had had them from the start.
  run(*given, "--seeds=0", folder="resumed")
  resumed = run(*given, "--seeds=0,1 --resume", folder="resumed")
  assert resumed.rows == whole
  given = "report", ended.folder, "--metrics=accuracy,forgetting"
  page = run(*given, folder="page", takes_arguments=True).folder
  assert "forgetting" in (page / "report.html").read_text()


@pytest.mark.slow
def test_it_takes_three_classes_and_clients_without_examples_of_a_domain(
  run, tmp_path
):
  rng = np.random.default_rng(0)
  path = tmp_path / "mine.npz"
  domain, client = np.arange(240) % 4, np.arange(240) // 4 % 3
  kept = (client != 1) | (domain != 1)
  y = rng.integers(0, 3, 240)
  x = rng.normal(size=(240, 3)).astype(np.float32) + 3 * np.eye(3)[y]
  np.savez(path, x=x[kept], y=y[kept], domain=domain[kept], client=client[kept])
  rows = run(continual, _SMALL, f"--algorithm=fed_avg --dataset={path}").frame
  assert len(rows) == 3
  assert rows["accuracy"].between(0, 100).all()
