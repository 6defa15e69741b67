"""The binary `experiments.dynamic_regret`, run whole."""

import functools
import json

import pytest

from experiments import dynamic_regret

_SMALL = ("--seeds=1", "--timesteps=4,16")


@pytest.fixture
def run_regret(run_here):
  """Returns `run(arguments) -> exit code`."""
  return functools.partial(run_here, dynamic_regret)


@pytest.mark.long
def test_run_gives_rows_figures_and_a_table(
  tmp_path, run_regret, drawn_figures, read_rows, capsys
):
  folder = tmp_path / "run"
  figures = "regret_fixed", "regret_growing_sine"
  with drawn_figures(*figures):
    assert run_regret([*_SMALL, f"--output_dir={folder}"]) == 0
  rows = read_rows(folder)
  # Four algorithms, two readings, four schedules, two lengths.
  assert len(rows) == 4 * 2 * 4 * 2
  assert {row["seed"] for row in rows} == {"1"}
  assert all(float(row["regret"]) >= 0 for row in rows)
  flags = json.loads((folder / "config.json").read_text())["flags"]
  assert flags["timesteps"] == ["4", "16"]
  assert len(list((folder / "figures").glob("*.png"))) == 10
  for figure in figures:
    assert (folder / "figures" / f"{figure}.png").stat().st_size > 1000
  output = capsys.readouterr().out
  for shift in ("linear", "sine", "square", "bernoulli"):
    assert output.count(shift) >= 2


@pytest.mark.parametrize(
  "flag", ["--timesteps=16", "--timesteps=4,6", "--timesteps=4,x", "--seeds=-1"]
)
def test_bad_flags_end_with_one_line_and_nothing_written(flag, refused):
  assert flag in refused(dynamic_regret, [*_SMALL, flag])
