"""Tests of what tensorflow-datasets writes, read as named data sets."""

import shutil

import numpy as np
import pytest
from absl import logging
from numpy.testing import assert_array_equal

from tff_shift.data import dataset as dataset_lib
from tff_shift.data import datasets


class TestTfds:
  def test_emnist_is_upright_and_counts_from_zero(
    self, write_tfds_images, tmp_path
  ):
    upright = np.zeros((28, 28, 1), np.uint8)
    upright[4:24, 8] = 255  # The letter L: a stroke down,
    upright[23, 8:20] = 255  # and one to the right.
    other = np.full((28, 28, 1), 7, np.uint8)
    stored = upright.transpose(1, 0, 2)
    write_tfds_images(
      tmp_path,
      "emnist",
      "3.1.0",
      (28, 28, 1),
      37,
      {"train": [(stored, 12), (other, 1)], "test": [(other, 26)]},
      config="letters",
    )
    source = datasets.load("emnist_letters", data_dir=tmp_path)
    assert_array_equal(source.x, [upright, other, other])
    assert_array_equal(source.y, [11, 0, 25])
    assert source.x.flags.c_contiguous
    assert [source.schema.classes[y] for y in source.y] == ["L", "A", "Z"]
    assert source.num_train == 2

  def test_cifar100_has_fine_and_coarse_labels(self, write_tfds, tmp_path):
    import tensorflow_datasets as tfds

    images = np.full((32, 32, 3), 7, np.uint8) * np.uint8([[[[1]]], [[[2]]]])
    names = {
      "label": [f"fine {label}" for label in range(100)],
      "coarse_label": [f"coarse {label}" for label in range(20)],
    }
    features = {"image": tfds.features.Image(shape=(32, 32, 3))} | {
      key: tfds.features.ClassLabel(names=values)
      for key, values in names.items()
    }
    train, test = (
      {"image": image, "label": fine, "coarse_label": coarse}
      for image, fine, coarse in zip(images, [99, 4], [13, 0], strict=True)
    )
    splits = {"train": [train], "test": [test]}
    write_tfds(tmp_path, "cifar100", "3.0.2", features, splits)
    for name, labels, key in (
      ("cifar100", [99, 4], "label"),
      ("cifar20", [13, 0], "coarse_label"),
    ):
      source = datasets.load(name, data_dir=tmp_path)
      assert_array_equal(source.x, images)
      assert_array_equal(source.y, labels)
      assert source.schema.classes == tuple(names[key])
      assert source.num_train == 1
      assert source.time is None

  def test_fashion_mnist_is_read_by_its_newest_version(
    self, write_tfds_images, tmp_path
  ):
    shape = (28, 28, 1)
    for version, grey in (("3.0.1", 30), ("3.0.0", 20)):
      rows = [(np.full(shape, grey, np.uint8), 9)]
      splits = {"train": rows, "test": rows}
      write_tfds_images(tmp_path, "fashion_mnist", version, shape, 10, splits)
    source = datasets.load("fashion_mnist", data_dir=tmp_path)
    assert_array_equal(source.x, np.full((2, 28, 28, 1), 30))
    assert_array_equal(source.y, [9, 9])
    assert source.num_train == 1

  @pytest.mark.slow
  def test_mnist_is_the_official_one(self, load_once):
    source = load_once("mnist")
    assert source.x.shape == (70_000, 28, 28, 1)
    assert source.num_train == 60_000
    assert source.schema.classes == tuple("0123456789")
    # Published counts per class of the two splits, training first.
    assert_array_equal(
      np.bincount(source.y[:60_000]),
      [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    )
    assert_array_equal(
      np.bincount(source.y[60_000:]),
      [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    )
    # The published mean and standard deviation of the training images.
    train = source.x[:60_000] / np.float32(255)
    assert train.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert train.std(dtype=np.float64) == pytest.approx(0.3081, abs=5e-5)
    import tensorflow_datasets as tfds

    for split, start in (("train[:9]", 0), ("test[:9]", 60_000)):
      head = tfds.load(
        "mnist",
        split=split,
        data_dir=dataset_lib.data_folder(None),
        download=False,
      )
      stored = [example["image"] for example in tfds.as_numpy(head)]
      assert_array_equal(source.x[start : start + 9], stored)

  @pytest.mark.slow
  def test_cifar10_is_the_official_one(self, load_once):
    cifar10 = load_once("cifar10")
    assert cifar10.x.shape == (60_000, 32, 32, 3)
    assert cifar10.num_train == 50_000
    assert cifar10.schema.classes[::3] == ("airplane", "cat", "frog", "truck")
    # Both splits are balanced.
    train, test = np.split(cifar10.y, [50_000])
    assert_array_equal(np.bincount(train), [5000] * 10)
    assert_array_equal(np.bincount(test), [1000] * 10)
    # The published means of red, green and blue; a copy that was stored as JPEG
    # is off by up to 0.01.
    means = cifar10.x[:50_000].mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=0.01)


def flip_bit(content):
  middle = len(content) // 2
  return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


TRAIN = "mnist-train.tfrecord-00000-of-00001"
TEST = "mnist-test.tfrecord-00000-of-00001"


class TestDamage:
  @pytest.fixture(scope="class")
  def whole(self, write_tfds_images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    shape = (28, 28, 1)
    rows = [(np.full(shape, label, np.uint8), label) for label in range(6)]
    splits = {"train": rows[:4], "test": rows[4:]}
    write_tfds_images(folder, "mnist", "3.0.1", shape, 10, splits)
    return folder

  @pytest.mark.parametrize(
    "name, damage",
    [
      (TRAIN, flip_bit),
      (TRAIN, lambda content: content[:-3]),
      # Ends with a whole record, and lacks three.
      (TRAIN, lambda content: content[: len(content) // 4]),
      (TEST, lambda content: b""),
      (TEST, None),
      ("dataset_info.json", lambda content: content[:-9]),
      ("dataset_info.json", lambda content: b"\xff" + content),
      ("dataset_info.json", lambda content: b"{}"),
      ("features.json", lambda content: content[: len(content) // 2]),
    ],
  )
  def test_file_is_named_in_one_line(
    self, name, damage, whole, tmp_path, refusal
  ):
    folder = shutil.copytree(whole, tmp_path / "copy")
    path = folder / "mnist" / "3.0.1" / name
    content = path.read_bytes()
    path.unlink()
    if damage is not None:
      path.write_bytes(damage(content))
    message = refusal(datasets.load, "mnist", data_dir=folder)
    assert message.startswith(f"{path} cannot be read (")
    assert f"remove {path.parent} and fetch it again with: python" in message
    assert len(message) < 1000 and "{{" not in message

  def test_reading_logs_nothing(self, whole, caplog, monkeypatch, refusal):
    # As it would be the first time in a process, each time.
    monkeypatch.setattr(
      logging, "log_first_n", lambda level, told, n: logging.log(level, told)
    )
    datasets.load("mnist", data_dir=whole)
    datasets.load("tfds:mnist", data_dir=whole)
    assert refusal(
      datasets.get, "tfds:mnist:label,image", data_dir=whole
    ).startswith("image of tfds:mnist")
    assert not caplog.records
