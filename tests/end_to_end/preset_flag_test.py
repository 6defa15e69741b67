"""Presets by name, wherever the binaries are installed."""

import pytest

from tff_shift.command_line.flags import preset_flag


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
  "binary, flags, wrong",
  [
    ("dynamic_personalization", "--algorithm=local", "--rounds=0"),
    ("evolving", "--algorithm=fed_evolve", "--learning_rate=0"),
    ("guidance", "--algorithm=fed_avg", "--rounds=0"),
    ("online_adaptation", "--algorithm=fed_ade,fix_lr", "--eta_max=0"),
  ],
)
def test_each_is_read(binary, flags, wrong, presets, refused):
  found = presets(binary)
  assert found
  for preset in found:
    # What is not allowed stops the run once all flags are known.
    line = refused(binary, [f"--flagfile={preset}", flags, wrong])
    assert wrong in line
