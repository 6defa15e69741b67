"""The binary `experiments.dynamic_regret`, run whole."""

import pytest

from experiments import dynamic_regret


@pytest.mark.long
def test_run_gives_rows_figures_and_a_table(run, drawn_figures):
  figures = "regret_fixed", "regret_growing_sine"
  with drawn_figures(*figures):
    ended = run(dynamic_regret, "--seeds=1 --timesteps=4,16")
  rows = ended.rows
  # Four algorithms, two readings, four schedules, two lengths.
  assert len(rows) == 4 * 2 * 4 * 2
  assert {row["seed"] for row in rows} == {"1"}
  assert all(float(row["regret"]) >= 0 for row in rows)
  assert ended.config["flags"]["timesteps"] == ["4", "16"]
  assert len(ended.figures) == 10
  for figure in figures:
    path = ended.folder / "figures" / f"{figure}.png"
    assert path.stat().st_size > 1000
  for shift in ("linear", "sine", "square", "bernoulli"):
    assert ended.output.count(shift) >= 2
