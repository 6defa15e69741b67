"""Presets by name, wherever the binaries are installed."""

import pytest

from experiments import command_line
from experiments import preset_flag


@pytest.mark.parametrize(
  "binary",
  ["dynamic_personalization", "evolving", "guidance", "online_adaptation"],
)
def test_names_are_those_of_the_files(binary, presets):
  names = preset_flag.names(binary)
  assert "demo" in names
  assert names == [file.stem for file in presets(binary)]
  assert preset_flag.help_text(binary).endswith(f": {', '.join(names)}.")


@pytest.mark.parametrize("given", [["--preset=demo"], ["-preset", "demo"]])
def test_preset_becomes_its_file_in_its_place(given, presets):
  found = preset_flag.expand(
    ["binary", "--rounds=3", *given, "--seeds=1"], "guidance"
  )
  (file,) = (file for file in presets("guidance") if file.stem == "demo")
  assert found == ["binary", "--rounds=3", f"--flagfile={file}", "--seeds=1"]


@pytest.mark.parametrize(
  ("arguments", "binary", "complaint"),
  [
    (
      ["--preset=dem"],
      "guidance",
      "--preset: guidance has no preset 'dem'; its presets: cifar10,"
      " cifar100, cifar20, demo",
    ),
    (
      ["--preset"],
      "guidance",
      "has no preset ''; its presets: cifar10, cifar100, cifar20, demo",
    ),
    (
      ["--preset=../guidance/demo"],
      "evolving",
      "its presets: caltran, circle, demo, portraits, reddit,"
      " rotated_emnist_letters, rotated_mnist, synthetic_titles",
    ),
    (
      ["--preset=demo"],
      "workers",
      "workers has no preset 'demo'; its presets: none",
    ),
  ],
)
def test_other_names_are_refused(arguments, binary, complaint):
  with pytest.raises(command_line.UsageError) as error:
    preset_flag.expand(["binary", *arguments], binary)
  assert complaint in str(error.value)


def test_wrong_preset_ends_a_binary_in_one_line(run_evolving, capsys):
  assert run_evolving(["--preset=dem"]) == 2
  errors = capsys.readouterr().err
  assert errors.startswith("evolving: --preset: evolving has no preset 'dem'")
  assert errors.count("\n") == 1


def test_flags_after_a_preset_count(run_evolving, capsys):
  # The preset's rounds are right, and these are not.
  assert run_evolving(["--preset=demo", "--rounds=0"]) == 2
  assert capsys.readouterr().err.startswith("evolving: --rounds")
