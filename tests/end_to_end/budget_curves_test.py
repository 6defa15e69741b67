"""The command `budget_curves`, on an archive of results."""

import pathlib
import shutil

import pytest

from experiments.papers import budget_curves

_RESULTS = pathlib.Path(__file__).parents[2] / "results"


def test_command_reads_an_archive(tmp_path, run_here, capsys):
  name = "fed_ade_4_cifar10"
  shutil.unpack_archive(_RESULTS / "raw" / f"{name}.tar.xz", tmp_path / name)
  table = _RESULTS / "tables/fed_ade_4_high_rates.toml"
  output = tmp_path / "curves"
  code = run_here(
    budget_curves,
    [f"{table}={tmp_path / name}", f"--output_dir={output}"],
    takes_arguments=True,
  )
  assert (code, capsys.readouterr().err) == (0, "")
  # One table has no profile.
  assert sorted(path.name for path in output.iterdir()) == [
    "curves.md",
    "fed_ade_4.pdf",
    "fed_ade_4.png",
  ]
  page = (output / "curves.md").read_text(encoding="utf-8")
  # As in results/online_adaptation.md, "One estimator".
  for line in ("| 67.1 ± 0.0 |", "| 67.3 ± 0.3 |", "| 66.9 ± 0.1 |"):
    assert line in page


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ([], "name tables and their folders"),
    (["demo/digits"], "name tables and their folders"),
    (["demo/digits=there"], "--output_dir: it must be set"),
    (["demo/digit=there", "--output_dir={}"], "demo/digit: unknown table"),
    (["demo/digits=there", "--output_dir={}"], "there: there is no plan.json"),
  ],
)
def test_wrong_arguments(arguments, message, run_here, tmp_path, capsys):
  arguments = [each.format(tmp_path / "out") for each in arguments]
  assert run_here(budget_curves, arguments, takes_arguments=True) == 2
  error = capsys.readouterr().err
  assert message in error
  assert error.count("\n") == 1
