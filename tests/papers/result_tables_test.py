"""Tests of the tables in results/."""

import json
import tarfile

import numpy as np
import pytest

from experiments.papers import binary_flags
from experiments.papers import result_tables
from experiments.papers import specification
from tff_shift.reporting.pages import contents

_RAW = result_tables._RESULTS / "raw"


@pytest.fixture(scope="module", autouse=True)
def defined_flags():
  for binary in specification.BINARIES:
    binary_flags.of(binary)


def rows(text):
  """Returns the rows of a table by their first cell."""
  lines = [line.strip("| ").split(" | ") for line in text.splitlines()]
  return {cells[0]: cells[1:] for cells in lines if len(cells) > 1}


@pytest.mark.slow
def test_tables_are_up_to_date(capsys):
  assert result_tables.main(["--check"]) == 0, capsys.readouterr().err


def test_run_folders_have_the_means_of_their_summaries():
  name = "fed_ade_digits_again"
  text = result_tables.markdown(
    {"archive": name, "by": "shift", "metrics": "accuracy"}
  )
  with tarfile.open(_RAW / f"{name}.tar.xz") as archive:
    file = archive.extractfile("source_fed_poe/summary.json")
    entries = json.load(file)["runs"]
  assert rows(text)["method"] == ["linear", "sine", "square", "bernoulli"]
  for algorithm, row in (("source", "source"), ("fed_poe", "fed\\_poe")):
    values = {
      entry["setting"]["shift"]: entry["metrics"]["accuracy"]["seeds"]
      for entry in entries
      if entry["algorithm"] == algorithm
    }
    assert [cell.strip("*") for cell in rows(text)[row]] == [
      f"{np.mean(values[shift]):.2f} ± {np.std(values[shift], ddof=1):.2f}"
      for shift in rows(text)["method"]
    ]
  # The largest mean of each column is bold.
  assert all(cell.startswith("**") for cell in rows(text)["fed\\_poe"])
  assert "commit c108798a" in text
  assert "python -m experiments.online_adaptation --dataset=digits" in text


def test_reproductions_have_command_papers_values_and_differences():
  text = result_tables.markdown(
    {"archive": "fed_evolve_15_circle", "of": "fed_evolve/15"}
  )
  assert text.startswith(
    "    python -m experiments.reproduce fed_evolve/15 --full"
    " --columns=circle_dirichlet_inf"
  )
  table = rows(text)
  assert table["Local"][1] == "61.84 ± 2.34"
  # The seeds are 91.1, 97.3 and 96.6.
  assert table["FedAvg"][0] == "**95.00 ± 3.40**"
  assert "2026-11-23; 2 cores" in text
  assert "`raw/fed_evolve_15_circle.tar.xz`" in text


def test_other_data_sets_of_the_machine_change_nothing(tmp_path, monkeypatch):
  fields = {"archive": "fed_evolve_3_circle", "of": "fed_evolve/3"}
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
  text = result_tables.markdown(fields)
  for name in ("portraits", "caltran"):
    (tmp_path / name).mkdir()
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  assert result_tables.markdown(fields) == text


def test_json_files_count_what_was_found():
  text = result_tables.markdown(
    {"archive": "concept_groups.json", "metrics": "found,accuracy"}
  )
  records = json.loads((_RAW / "concept_groups.json").read_text())
  values = [
    record["accuracy"]
    for record in records
    if record["method"] == "ifca" and record["dirichlet"] == 100
  ]
  mean, spread = np.mean(values), np.std(values, ddof=1)
  assert rows(text)["ifca"][2:] == ["5 of 5", f"{mean:.2f} ± {spread:.2f}"]


def test_first_archive_with_a_cell_wins_and_rows_can_be_left_out():
  fields = {
    "archive": "fed_ade_1_cifar10,fed_ade_1_cifar10_one_client",
    "of": "results/tables/fed_ade_1_high_rates.toml",
    "columns": "linear",
    "without": "FixLR (low)",
  }
  table = rows(result_tables.markdown(fields))
  assert table["no adaptation"][0] == "59.34 ± 0.33"
  # 56.8 with one client in a round.
  assert table["Fed-ADE"][0] == "**67.06 ± 0.02**"
  assert "FixLR (low)" not in table


def cell(row, column, *values):
  return contents.Cell(
    row=row, column=column.heading, by_seed=dict(enumerate(values))
  )


def test_wide_tables_are_turned():
  columns = [
    contents.Column(heading=("digits", f"{number} rounds"), metric="accuracy")
    for number in range(4)
  ]
  cells = [cell("a", column, 1.0, 3.0) for column in columns]
  head, body, common = result_tables._grid(columns, cells)
  assert (head, common) == (["", "a"], "digits")
  assert body[2] == ["2 rounds", "2.00 ± 1.41"]
  head, body, _ = result_tables._grid(columns[:2], cells[:2])
  assert head == ["method", "0 rounds", "1 rounds"]
  assert body == [["a", "2.00 ± 1.41", "2.00 ± 1.41"]]
  # Lower values can be the best.
  column = result_tables._column("iid", "LAT")
  cells = [cell("a", column, 1.0, 3.0), cell("b", column, 5.0, 5.0)]
  _, body, _ = result_tables._grid([column], cells)
  assert [row[1].startswith("**") for row in body] == [True, False]


def test_pages_are_written_between_the_comments(tmp_path, refusal):
  path = tmp_path / "page.md"
  start = "<!-- table: archive=fed_evolve_15_circle of=fed_evolve/15 -->\n"
  path.write_text(f"# A\n\n{start}old\n<!-- end of table -->\nlast\n")
  text = result_tables.page(path)
  assert text.startswith(f"# A\n\n{start}\n    python")
  assert text.endswith("\n\n<!-- end of table -->\nlast\n")
  assert "old" not in text
  path.write_text(text)
  assert result_tables.page(path) == text
  path.write_text(f"{start}old\n")
  assert "no `<!-- end of table -->`" in refusal(result_tables.page, path)


def test_wrong_fields_are_refused(refusal):
  for fields in ("archive=a colour=red", "of=fed_evolve/1"):
    told = refusal(result_tables._fields, fields)
    assert "a table has an archive, and" in told
  fields = {"archive": "fed_evolve_15_circle", "of": "fed_evolve/15"}
  told = refusal(result_tables.markdown, fields | {"columns": "Caltran"})
  assert "no cell fits the fields" in told
