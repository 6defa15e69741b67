"""Old names of flags: on command lines, in flag files, in files of runs."""

import pathlib

import pytest

from tff_shift import records
from tff_shift import renamed_flags
from tff_shift.simulation.storage import run_records

_ROOT = pathlib.Path(__file__).parents[1]


class TestArguments:
  @pytest.mark.parametrize(
    "given, expected",
    [
      (["--input_deviation=0.5"], ["--input_std=0.5"]),
      (["-input_deviation", "0.5"], ["--input_std", "0.5"]),
      (["--input_deviations=1", "--x=input_deviation"], None),
    ],
  )
  def test_on_a_command_line(self, given, expected):
    found = renamed_flags.rewrite_arguments(["binary", *given])
    assert found == ["binary", *(expected or given)]

  def test_in_a_flag_file(self, tmp_path):
    path = tmp_path / "old.flags"
    path.write_text("# A comment.\n--rounds=2\n--input_deviation=0.25\n")
    found = renamed_flags.rewrite_arguments(
      ["binary", "--seeds=1", f"--flagfile={path}", "--rounds=3"]
    )
    assert found == [
      "binary",
      "--seeds=1",
      "--rounds=2",
      "--input_std=0.25",
      "--rounds=3",
    ]


def test_files_of_earlier_versions_are_read_by_the_new_names():
  path = _ROOT / "tests" / "first_version" / "config.json"
  flags = records.read(path, run_records.RunConfig).flags
  assert not set(flags) & set(renamed_flags.RENAMED)
  assert set(renamed_flags.RENAMED.values()) <= set(flags)
