"""Folders of images run in the binaries; their names reach the results."""

import json

import numpy as np
import pytest
from PIL import Image

from tff_shift.command_line.binaries import guidance
from tff_shift.command_line.plans import guidance_plan

_QUICK = ("--algorithm=fed_avg", "--rounds=2", "--local_steps=1")


@pytest.fixture
def write(tmp_path, monkeypatch):
  """Returns `write(outer)`: images of two classes in each outer folder."""
  monkeypatch.chdir(tmp_path)

  def write(*outer):
    generator = np.random.default_rng(0)
    for place in range(16 * len(outer)):
      name = outer[place // 16], "cat" if place % 2 else "dog"
      folder = tmp_path.joinpath("pictures", *name)
      folder.mkdir(parents=True, exist_ok=True)
      pixels = generator.integers(0, 256, (9, 10), np.uint8)
      Image.fromarray(pixels).save(folder / f"{place}.png")

  return write


@pytest.mark.slow
def test_domains_of_a_folder(write, run_evolving, tmp_path, read_runs):
  write("1", "2", "10")
  arguments = [
    *(*_QUICK, "--dataset=pictures", "--folder_levels=domain,class"),
    *("--image_size=8", "--num_clients=2", f"--output_dir={tmp_path / 'run'}"),
  ]
  assert run_evolving(arguments) == 0
  (run,) = read_runs(tmp_path / "run")
  assert (run["dataset"], run["setting"]["num_domains"]) == ("pictures", 3)
  flags = json.loads((tmp_path / "run" / "config.json").read_text())["flags"]
  assert (flags["folder_levels"], flags["image_size"]) == ("domain,class", 8)
  wrong = f"--dataset_sha256={flags['dataset_sha256'][::-1]}"
  assert run_evolving([*arguments, "--resume", wrong]) == 2
  # One more round; with another picture, none.
  assert run_evolving([*arguments, "--resume", "--rounds=3"]) == 0
  path = tmp_path / "pictures" / "2" / "cat" / "17.png"
  assert path.exists()
  Image.new("L", (10, 9)).save(path)
  assert run_evolving([*arguments, "--resume", "--rounds=4"]) == 2


@pytest.mark.slow
def test_clients_of_a_folder(write, run_here, tmp_path, read_runs):
  write("north", "south")
  arguments = [
    *(*_QUICK, "--dataset=./pictures", "--folder_levels=client,class"),
    *("--image_size=8", f"--output_dir={tmp_path / 'run'}"),
  ]
  assert run_here(guidance, guidance_plan, arguments) == 0
  (run,) = read_runs(tmp_path / "run")
  assert run["setting"]["num_clients"] == 2


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ("", "2 folders deep; folder_levels must say what they are"),
    ("--folder_levels=domain,class --label=y", "--label belongs to --dataset="),
    ("--dataset=circle --image_size=8", "--image_size belongs to --dataset="),
    ("--dataset=no/pictures --label=y", "no/pictures: there is no such folder"),
    ("--dataset=./pictures/1/cat/1.png", "1.png is not a folder; a file must"),
    (
      "--folder_levels=client,class --num_clients=9",
      "has 2 clients of its own",
    ),
  ],
)
def test_wrong_flags_are_refused(write, run_evolving, capsys, flags, message):
  write("1", "2")
  assert run_evolving(["--dataset=pictures", *flags.split()]) == 2
  errors = capsys.readouterr().err
  assert message in errors and errors.count("\n") == 1
