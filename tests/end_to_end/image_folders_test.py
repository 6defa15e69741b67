"""Folders of images run in the binaries; their names reach the results."""

import numpy as np
import pytest
from PIL import Image

_QUICK = """
  --algorithm=fed_avg --rounds=2 --local_steps=1 --image_size=8
"""


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
def test_domains_of_a_folder(write, run, tmp_path):
  write("1", "2", "10")
  flags = "--dataset=pictures --folder_levels=domain,class --num_clients=2"
  given = "evolving", _QUICK, flags
  ended = run(*given)
  (summary,) = ended.runs
  assert summary["dataset"] == "pictures"
  assert summary["setting"]["num_domains"] == 3
  # With another picture, the run does not go on.
  Image.new("L", (10, 9)).save(tmp_path / "pictures" / "2" / "dog" / "17.png")
  assert "--dataset_sha256 was " in run(*given, "--resume", code=2).errors


@pytest.mark.long
def test_clients_of_a_folder(write, run):
  write("north", "south")
  flags = "--dataset=./pictures --folder_levels=client,class"
  (summary,) = run("guidance", _QUICK, flags).runs
  assert summary["setting"]["num_clients"] == 2


def test_wrong_flags_are_refused(write, refused):
  write("1", "2")
  for flags, message in {
    "pictures": "2 folders deep; folder_levels must say what they are",
    "no/pictures --label=y": "no/pictures: there is no such folder",
    "./pictures/1/dog/1.png": "1.png is not a folder; a file must be one",
  }.items():
    assert message in refused("evolving", f"--dataset={flags}")
