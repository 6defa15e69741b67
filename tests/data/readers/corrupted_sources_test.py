import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tff_shift.data import dataset as dataset_lib
from tff_shift.data.readers import corrupted_sources

DATASETS = ("cifar10_corrupted", "cifar100_corrupted")
# One whose file has its name, and the two whose files have another.
FILES = {
  "brightness": "brightness.npy",
  "elastic": "elastic_transform.npy",
  "frosted_glass_blur": "glass_blur.npy",
}
NUM_IMAGES = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with the archive of 7 images and three of its corruptions.

  Every image is a constant that tells its file, severity and place. CIFAR-10-C
  has the same layout as CIFAR-100-C: the official builder reads this one too.
  """
  folder = tmp_path_factory.mktemp("data")
  archive = folder / corrupted_sources.CIFAR100_FOLDER
  archive.mkdir()
  rows = np.arange(5 * NUM_IMAGES)
  for number, file in enumerate(FILES.values()):
    images = np.empty((len(rows), 32, 32, 3), np.uint8)
    images[:] = (number * len(rows) + rows)[:, np.newaxis, np.newaxis, None]
    np.save(archive / file, images)
  np.save(archive / "labels.npy", np.tile(np.arange(NUM_IMAGES), 5) % 5)
  return folder


@pytest.fixture(scope="module")
def written(folder):
  """The same folder, with what tensorflow-datasets makes of the archive."""
  import tensorflow_datasets as tfds

  (folder / "CIFAR-10-C").symlink_to(corrupted_sources.CIFAR100_FOLDER)
  with pytest.MonkeyPatch.context() as patch, tfds.testing.disable_gcs_access():
    patch.setattr(
      tfds.download.DownloadManager,
      "download_and_extract",
      lambda self, url: str(folder),
    )
    for corruption in FILES:
      for severity in (1, 4):
        tfds.builder(
          f"cifar10_corrupted/{corruption}_{severity}", data_dir=folder
        ).download_and_prepare()
  return folder


class TestCorruptionNames:
  @pytest.mark.parametrize("dataset", DATASETS)
  def test_names_are_those_of_tensorflow_datasets(self, dataset):
    from tensorflow_datasets.image_classification import cifar10_corrupted

    configs = cifar10_corrupted.Cifar10Corrupted.BUILDER_CONFIGS
    names = corrupted_sources.corruption_names(dataset)
    assert len(names) == 19
    assert sorted(set(names)) == list(names)
    assert {
      f"{name}_{severity}" for name in names for severity in range(1, 6)
    } == {config.name for config in configs}


class TestCifar100:
  @pytest.mark.parametrize("severity", [1, 3, 5])
  def test_severity_is_its_fifth_of_the_file(self, folder, severity):
    for number, corruption in enumerate(FILES):
      source = corrupted_sources.load_corrupted(
        "cifar100_corrupted", corruption, severity, data_dir=folder
      )
      first = (5 * number + severity - 1) * NUM_IMAGES
      assert source.x.shape == (NUM_IMAGES, 32, 32, 3)
      assert_array_equal(
        source.x[:, 31, 0, 2], np.arange(first, first + NUM_IMAGES)
      )
      assert_array_equal(source.y, [0, 1, 2, 3, 4, 0, 1])
      assert source.num_train is None
      # In memory: nothing goes on reading from the file.
      assert type(source.x) is np.ndarray
      assert source.x.flags.owndata

  def test_class_names_are_the_hundred_in_their_order(self, folder):
    names = corrupted_sources.load_corrupted(
      "cifar100_corrupted", "elastic", 1, data_dir=folder
    ).schema.classes
    assert len(names) == 100
    # Labels that are known: 0, 19, 53 and 99 of the published list.
    known = {0: "apple", 19: "cattle", 53: "orange", 99: "worm"}
    assert {label: names[label] for label in known} == known

  @pytest.mark.parametrize(
    "file, content, message",
    [
      (
        "fog",
        np.zeros((9, 32, 32, 3), np.uint8),
        "holds uint8 [9, 32, 32, 3]; it must hold uint8 [10, 32, ",
      ),
      (
        "fog",
        np.zeros((10, 32, 32, 3), np.float32),
        "holds float32 [10, 32, 32, 3]; it must hold uint8",
      ),
      (
        "labels",
        np.zeros(9, int),
        "holds int64 [9]; it must hold integers [5 ",
      ),
      (
        "labels",
        np.full(10, 100),
        "holds labels 100..100; they must lie in 0..",
      ),
      # Cut off after so many bytes.
      *(("fog", size, "cannot be read as an array") for size in (0, 60, 5000)),
    ],
  )
  def test_wrong_file_is_named(self, tmp_path, file, content, message, refusal):
    archive = tmp_path / corrupted_sources.CIFAR100_FOLDER
    archive.mkdir()
    np.save(archive / "fog.npy", np.zeros((10, 32, 32, 3), np.uint8))
    np.save(archive / "labels.npy", np.zeros(10, np.int64))
    path = archive / f"{file}.npy"
    if isinstance(content, int):
      path.write_bytes(path.read_bytes()[:content])
    else:
      np.save(path, content)
    assert f"{file}.npy {message}" in refusal(
      corrupted_sources.load_corrupted,
      "cifar100_corrupted",
      "fog",
      1,
      data_dir=tmp_path,
    )


@pytest.mark.parametrize("corruption", FILES)
def test_cifar10_images_are_those_of_the_archive(written, corruption):
  orders = []
  for severity in (1, 4):
    ours = corrupted_sources.load_corrupted(
      "cifar10_corrupted", corruption, severity, data_dir=written
    )
    assert ours.num_train is None
    assert ours.schema.classes[::9] == ("airplane", "truck")
    archive = corrupted_sources.load_corrupted(
      "cifar100_corrupted", corruption, severity, data_dir=written
    )
    # tensorflow-datasets shuffles; the constants tell which image is which.
    order = ours.x[:, 0, 0, 0].astype(int) - int(archive.x[0, 0, 0, 0])
    assert_array_equal(np.sort(order), np.arange(NUM_IMAGES))
    assert_array_equal(ours.x, archive.x[order])
    assert_array_equal(ours.y, archive.y[order])
    orders.append(order)
  assert_array_equal(*orders)


class TestLoadCorrupted:
  @pytest.mark.parametrize(
    "dataset, parts",
    [
      (
        "cifar10_corrupted",
        ["cifar10_corrupted/fog_2", "tfds.load('cifar10_corrupted/fog_2'"],
      ),
      (
        "cifar100_corrupted",
        ["CIFAR-100-C/fog.npy", "https://zenodo.org/record/3555552"],
      ),
    ],
  )
  def test_data_missing_names_folder_and_command(
    self, tmp_path, dataset, parts
  ):
    with pytest.raises(dataset_lib.DatasetNotFoundError) as error:
      corrupted_sources.load_corrupted(dataset, "fog", 2, data_dir=tmp_path)
    message = str(error.value)
    assert "\n" not in message
    for part in [str(tmp_path), *parts]:
      assert part in message

  @pytest.mark.parametrize(
    "arguments, message",
    [
      (("cifar", "fog", 1), "unknown corrupted data set 'cifar'; known are "),
      ((DATASETS[0], "fogs", 1), "unknown corruption 'fogs'; "),
      ((DATASETS[0], "fog", 0), "severity must be "),
      ((DATASETS[1], "fog", 6), "severity must lie in 1..5, got 6"),
    ],
  )
  def test_argument_wrong_is_refused(
    self, tmp_path, arguments, message, refusal
  ):
    told = refusal(
      corrupted_sources.load_corrupted, *arguments, data_dir=tmp_path
    )
    assert told.startswith(message)
