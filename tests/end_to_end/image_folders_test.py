"""Folders of images run in the binaries; their names reach the results."""

import json

import numpy as np
import pytest
from PIL import Image

from tff_shift.binaries import evolving
from tff_shift.binaries import guidance

_QUICK = ("--algorithm=fed_avg", "--rounds=2", "--local_steps=1")


@pytest.fixture
def write(tmp_path, monkeypatch):
  """Returns `write(outer)`: images of two classes in each outer folder."""
  monkeypatch.chdir(tmp_path)
  pixels = np.random.default_rng(0).integers(0, 256, (48, 9, 10), np.uint8)

  def write(*outer):
    for place in range(16 * len(outer)):
      name = outer[place // 16], ("cat", "dog")[place % 2]
      folder = tmp_path.joinpath("pictures", *name)
      folder.mkdir(parents=True, exist_ok=True)
      Image.fromarray(pixels[place]).save(folder / f"{place}.png")

  return write


@pytest.mark.long
def test_domains_of_a_folder(write, run_evolving, tmp_path, read_runs):
  write("1", "2", "10")
  levels = "--folder_levels=domain,class", "--image_size=8", "--num_clients=2"
  arguments = [*_QUICK, "--dataset=pictures", *levels, "--output_dir=run"]
  assert run_evolving(arguments) == 0
  (run,) = read_runs(tmp_path / "run")
  assert (run["dataset"], run["setting"]["num_domains"]) == ("pictures", 3)
  flags = json.loads((tmp_path / "run" / "config.json").read_text())["flags"]
  wrong = f"--dataset_sha256={flags['dataset_sha256'][::-1]}"
  assert run_evolving([*arguments, "--resume", wrong]) == 2
  # One more round; with another picture, none.
  assert run_evolving([*arguments, "--resume", "--rounds=3"]) == 0
  Image.new("L", (10, 9)).save(tmp_path / "pictures" / "2" / "dog" / "17.png")
  assert run_evolving([*arguments, "--resume", "--rounds=4"]) == 2


@pytest.mark.long
def test_clients_of_a_folder(write, run_here, tmp_path, read_runs):
  write("north", "south")
  levels = "--folder_levels=client,class", "--image_size=8"
  arguments = [*_QUICK, "--dataset=./pictures", *levels, "--output_dir=run"]
  assert run_here(guidance, arguments) == 0
  (run,) = read_runs(tmp_path / "run")
  assert run["setting"]["num_clients"] == 2


def test_wrong_flags_are_refused(write, refused):
  write("1", "2")
  for flags, message in {
    "pictures": "2 folders deep; folder_levels must say what they are",
    "no/pictures --label=y": "no/pictures: there is no such folder",
    "./pictures/1/dog/1.png": "1.png is not a folder; a file must be one",
  }.items():
    assert message in refused(evolving, f"--dataset={flags}")
