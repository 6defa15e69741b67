"""The command `budget_curves`, on an archive of results."""

import pathlib
import shutil

from experiments.papers import budget_curves

_RESULTS = pathlib.Path(__file__).parents[2] / "results"


def test_command_reads_an_archive(tmp_path, run):
  name = "fed_ade_4_cifar10"
  shutil.unpack_archive(_RESULTS / "raw" / f"{name}.tar.xz", tmp_path / name)
  table = _RESULTS / "tables/fed_ade_4_high_rates.toml"
  given = f"{table}={tmp_path / name}"
  folder = run(budget_curves, given, errors="", takes_arguments=True).folder
  # One table has no profile.
  assert sorted(path.name for path in folder.iterdir()) == [
    *("curves.md", "fed_ade_4.pdf", "fed_ade_4.png")
  ]
  page = (folder / "curves.md").read_text(encoding="utf-8")
  # As in results/online_adaptation.md, "One estimator".
  for line in ("| 67.1 ± 0.0 |", "| 67.3 ± 0.3 |", "| 66.9 ± 0.1 |"):
    assert line in page
