"""Tests of where data sets lie, and of what is said of one that is missing."""

import pytest

from tff_shift.data import dataset
from tff_shift.data import datasets
from tff_shift.data.readers import image_archives


@pytest.mark.parametrize(
  "name, searched, command",
  [
    ("mnist", "mnist", "tfds.load('mnist', data_dir='{}')"),
    ("cifar20", "cifar100", "tfds.load('cifar100', data_dir='{}')"),
    (
      "emnist_letters",
      "emnist/letters",
      "tfds.load('emnist/letters', data_dir='{}')",
    ),
    ("tiny_imagenet", image_archives.TINY_IMAGENET_FOLDER, "unzip -q"),
    ("portraits", image_archives.PORTRAITS_FOLDER, "curl -L"),
    ("caltran", "caltran", "caltran_dataset_labels.mat"),
    ("reddit", "reddit", "*.csv with title, subreddit, created_utc of posts"),
  ],
)
def test_data_missing_names_folder_and_command(
  tmp_path, name, searched, command
):
  with pytest.raises(dataset.DatasetNotFoundError) as error:
    datasets.load(name, data_dir=tmp_path)
  message = str(error.value)
  assert "\n" not in message
  for part in (str(tmp_path / searched), command.format(tmp_path)):
    assert part in message
  assert isinstance(error.value, FileNotFoundError)


def test_data_dir_comes_before_the_environment(tmp_path, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "environment"))
  with pytest.raises(dataset.DatasetNotFoundError, match="/environment/"):
    datasets.load("mnist")
  with pytest.raises(dataset.DatasetNotFoundError, match="/argument/"):
    datasets.load("mnist", data_dir=tmp_path / "argument")
  monkeypatch.delenv("TFDS_DATA_DIR")
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  with pytest.raises(
    dataset.DatasetNotFoundError, match="/home/tensorflow_datasets/"
  ):
    datasets.load("mnist")
