import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import scipy.ndimage
from sklearn import datasets

from tff_shift.data import sources


def assert_one_line(error, *parts):
  message = str(error.value)
  assert "\n" not in message
  for part in parts:
    assert part in message


class TestLoad:
  def test_name_unknown_lists_the_names(self):
    with pytest.raises(ValueError) as error:
      sources.load("minst")
    assert_one_line(error, "'minst'", *sources.names())

  @pytest.mark.parametrize(
    "name, searched, command",
    [
      ("mnist", "mnist", "tfds.load('mnist', data_dir='{}')"),
      (
        "emnist/letters",
        "emnist/letters",
        "tfds.load('emnist/letters', data_dir='{}')",
      ),
      ("cifar10", "cifar10", "tfds.load('cifar10', data_dir='{}')"),
      ("cifar100", "cifar100", "tfds.load('cifar100', data_dir='{}')"),
      ("tiny_imagenet", sources.TINY_IMAGENET_FOLDER, "unzip -q"),
      ("portraits", sources.PORTRAITS_FOLDER, "curl -L"),
      ("caltran", "caltran", "caltran_dataset_labels.mat"),
    ],
  )
  def test_data_missing_names_folder_and_command(
    self, tmp_path, name, searched, command
  ):
    with pytest.raises(sources.DatasetNotFoundError) as error:
      sources.load(name, data_dir=tmp_path)
    assert_one_line(
      error, repr(name), str(tmp_path / searched), command.format(tmp_path)
    )
    assert isinstance(error.value, FileNotFoundError)

  def test_superclasses_missing_name_the_set_that_has_them(self, tmp_path):
    with pytest.raises(sources.DatasetNotFoundError) as error:
      sources.load("cifar20", data_dir=tmp_path)
    assert_one_line(error, f"tfds.load('cifar100', data_dir='{tmp_path}')")

  def test_data_dir_comes_before_the_environment(self, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "environment"))
    with pytest.raises(sources.DatasetNotFoundError, match="/environment/"):
      sources.load("mnist")
    with pytest.raises(sources.DatasetNotFoundError, match="/argument/"):
      sources.load("mnist", data_dir=tmp_path / "argument")
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(
      sources.DatasetNotFoundError, match="/home/tensorflow_datasets/"
    ):
      sources.load("mnist")

  def test_import_leaves_tensorflow_alone(self):
    program = (
      "import sys; from tff_shift.data import domains, partition, sources,"
      " transforms; domains.load_evolving('rotated_digits');"
      " sys.exit('tensorflow' in sys.modules)"
    )
    root = pathlib.Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root)


class TestDigits:
  def test_digits_are_all_there_in_order(self):
    source = sources.load("digits")
    assert source.x.shape == (1797, 28, 28, 1)
    assert source.x.dtype == np.uint8
    assert (source.x.min(), source.x.max()) == (0, 255)
    assert source.y.dtype == np.int32
    np.testing.assert_array_equal(source.y[:10], np.arange(10))
    np.testing.assert_array_equal(source.y, datasets.load_digits().target)
    assert source.class_names == tuple("0123456789")
    assert source.time is None
    assert source.num_train is None

  def test_pixel_between_four_is_their_mean(self):
    # Behind the margin of 4, pixel (2, 7) lies at ((2 + 0.5) / 2.5 - 0.5,
    # (7 + 0.5) / 2.5 - 0.5) = (0.5, 2.5) of the 8x8 image, amid the values 5,
    # 13, 13 and 15 of 16.
    image = datasets.load_digits().images[0]
    np.testing.assert_array_equal(image[:2, 2:4], [[5, 13], [13, 15]])
    pixel = sources.load("digits").x[0, 4 + 2, 4 + 7, 0]
    assert pixel == round((5 + 13 + 13 + 15) / 4 * 255 / 16)

  def test_pixels_match_another_library(self):
    images = datasets.load_digits().images * 255 / 16
    expected = scipy.ndimage.zoom(
      images, (1, 2.5, 2.5), order=1, mode="nearest", grid_mode=True
    )
    whole = sources.load("digits").x[..., 0]
    actual = whole[:, 4:24, 4:24]
    assert whole.sum(dtype=int) == actual.sum(dtype=int)
    np.testing.assert_allclose(actual, expected, atol=0.5 + 1e-3)


class TestCircle:
  def test_circle_has_the_sizes_of_the_paper(self):
    source = sources.circle(0)
    assert source.x.shape == (30_000, 2)
    assert source.x.dtype == np.float32
    assert source.y.dtype == np.int32
    assert source.class_names == ("outside", "inside")
    np.testing.assert_array_equal(np.bincount(source.time), [1000] * 30)
    assert np.all(np.diff(source.time) >= 0)

  def test_labels_agree_with_the_boundary(self):
    source = sources.circle(3)
    radii = np.hypot(*source.x.T.astype(np.float64))
    np.testing.assert_array_equal(source.y, radii <= 10)
    # The boundary runs through every cloud.
    rates = [source.y[source.time == m].mean() for m in range(30)]
    assert min(rates) > 0.4 and max(rates) < 0.6

  def test_centres_lie_evenly_on_the_upper_half_circle(self):
    source = sources.circle(1)
    clouds = source.x.reshape(30, 1000, 2)
    means = clouds.mean(axis=1)
    angles = np.deg2rad(180 / 29 * np.arange(30))
    centres = 10 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    # Five standard errors of a mean of 1,000 points: 5 * 0.6 / sqrt(1000).
    np.testing.assert_allclose(means, centres, atol=0.095)

  def test_spread_is_that_of_the_paper_in_both_coordinates(self):
    source = sources.circle(2)
    angles = np.pi * source.time / 29
    offsets = source.x - 10 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    # Five standard errors: 5 * 0.6 / sqrt(2 * 30000), and 5 / sqrt(30000).
    np.testing.assert_allclose(offsets.std(axis=0), 0.6, atol=0.0123)
    assert abs(np.corrcoef(offsets.T)[0, 1]) < 0.029

  def test_points_are_a_function_of_the_seed(self):
    first, same, other = (sources.circle(s, 3, 50) for s in (0, 0, 1))
    np.testing.assert_array_equal(first.x, same.x)
    assert np.all(first.x != other.x)
    # Clouds have their own draws: (10, 0) and (-10, 0) are 20 apart.
    distances = first.x[:50] - first.x[100:]
    assert np.ptp(distances[:, 0]) > 0.1

  @pytest.mark.parametrize(
    "arguments, name",
    [((0, 0, 5), "num_domains"), ((0, 5, 0), "examples_per_domain")],
  )
  def test_count_below_one_is_refused(self, arguments, name):
    with pytest.raises(ValueError, match=f"^{name} must be .* got 0$"):
      sources.circle(*arguments)


def write_tfds(folder, name, version, features, splits, config=None):
  """Writes a tiny data set with the writers of tensorflow-datasets.

  Args:
    folder: Where tensorflow-datasets puts its data sets.
    name: Name of the data set.
    version: Its version.
    features: The features of the official builder.
    splits: The examples of each split.
    config: Name of the configuration, where there is one.
  """
  import tensorflow_datasets as tfds

  class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """The layout of the official builder, with other examples."""

    VERSION = tfds.core.Version(version)
    BUILDER_CONFIGS = (tfds.core.BuilderConfig(name=config),) if config else ()
    url_infos = None  # Nothing is downloaded, so no checksums are looked up.

    def _info(self):
      return self.dataset_info_from_configs(
        features=tfds.features.FeaturesDict(features),
        supervised_keys=("image", "label"),
        disable_shuffling=True,
      )

    def _split_generators(self, dl_manager):
      del dl_manager
      return {split: enumerate(rows) for split, rows in splits.items()}

    def _generate_examples(self):
      raise AssertionError("the splits bring their own examples")

  Builder.name = name
  with tfds.testing.disable_gcs_access():
    Builder(config=config, data_dir=folder).download_and_prepare()


@pytest.fixture(scope="module")
def cifar10():
  folder = os.environ.get("TFDS_DATA_DIR", "")
  if not (folder and (pathlib.Path(folder) / "cifar10").is_dir()):
    pytest.skip("TFDS_DATA_DIR does not name a folder that holds cifar10")
  return sources.load("cifar10")


class TestTfds:
  def test_emnist_is_upright_and_counts_from_zero(self, tmp_path):
    import tensorflow_datasets as tfds

    upright = np.zeros((28, 28, 1), np.uint8)
    upright[4:24, 8] = 255  # The letter L: a stroke down,
    upright[23, 8:20] = 255  # and one to the right.
    other = np.full((28, 28, 1), 7, np.uint8)
    stored = upright.transpose(1, 0, 2)
    write_tfds(
      tmp_path,
      "emnist",
      "3.1.0",
      {
        "image": tfds.features.Image(shape=(28, 28, 1)),
        "label": tfds.features.ClassLabel(num_classes=37),
      },
      {
        "train": [{"image": stored, "label": 12}, {"image": other, "label": 1}],
        "test": [{"image": other, "label": 26}],
      },
      config="letters",
    )
    source = sources.load("emnist/letters", data_dir=tmp_path)
    np.testing.assert_array_equal(source.x, [upright, other, other])
    np.testing.assert_array_equal(source.y, [11, 0, 25])
    assert source.x.dtype == np.uint8
    assert source.x.flags.c_contiguous
    assert source.y.dtype == np.int32
    assert [source.class_names[y] for y in source.y] == ["L", "A", "Z"]
    assert source.num_train == 2

  def test_cifar100_has_fine_and_coarse_labels(self, tmp_path):
    import tensorflow_datasets as tfds

    fine = [f"fine {label}" for label in range(100)]
    coarse = [f"coarse {label}" for label in range(20)]
    images = np.random.default_rng(0).integers(
      0, 256, (3, 32, 32, 3), dtype=np.uint8
    )
    rows = [
      {"id": "a", "image": image, "label": label, "coarse_label": superclass}
      for image, label, superclass in zip(
        images, [99, 4, 63], [13, 0, 19], strict=True
      )
    ]
    write_tfds(
      tmp_path,
      "cifar100",
      "3.0.2",
      {
        "id": tfds.features.Text(),
        "image": tfds.features.Image(shape=(32, 32, 3)),
        "label": tfds.features.ClassLabel(names=fine),
        "coarse_label": tfds.features.ClassLabel(names=coarse),
      },
      {"train": rows[:2], "test": rows[2:]},
    )
    for name, labels, class_names in (
      ("cifar100", [99, 4, 63], fine),
      ("cifar20", [13, 0, 19], coarse),
    ):
      source = sources.load(name, data_dir=tmp_path)
      np.testing.assert_array_equal(source.x, images)
      np.testing.assert_array_equal(source.y, labels)
      assert source.y.dtype == np.int32
      assert source.class_names == tuple(class_names)
      assert source.num_train == 2
      assert source.time is None

  def test_fashion_mnist_is_read_by_its_newest_version(self, tmp_path):
    import tensorflow_datasets as tfds

    for version, grey in (("3.0.1", 30), ("3.0.0", 20)):
      row = {"image": np.full((28, 28, 1), grey, np.uint8), "label": 9}
      write_tfds(
        tmp_path,
        "fashion_mnist",
        version,
        {
          "image": tfds.features.Image(shape=(28, 28, 1)),
          "label": tfds.features.ClassLabel(num_classes=10),
        },
        {"train": [row], "test": [row]},
      )
    source = sources.load("fashion_mnist", data_dir=tmp_path)
    np.testing.assert_array_equal(source.x, np.full((2, 28, 28, 1), 30))
    np.testing.assert_array_equal(source.y, [9, 9])
    assert source.num_train == 1

  def test_mnist_is_the_official_one(self):
    folder = os.environ.get("TFDS_DATA_DIR", "")
    if not (folder and (pathlib.Path(folder) / "mnist").is_dir()):
      pytest.skip("TFDS_DATA_DIR does not name a folder that holds mnist")
    source = sources.load("mnist")
    assert source.x.shape == (70_000, 28, 28, 1)
    assert source.num_train == 60_000
    assert source.class_names == tuple("0123456789")
    assert source.x.dtype == np.uint8
    assert source.y.dtype == np.int32
    # Published counts per class of the two splits, training first.
    np.testing.assert_array_equal(
      np.bincount(source.y[:60_000]),
      [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    )
    np.testing.assert_array_equal(
      np.bincount(source.y[60_000:]),
      [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    )
    # The published mean and standard deviation of the training images.
    train = source.x[:60_000] / np.float32(255)
    assert train.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert train.std(dtype=np.float64) == pytest.approx(0.3081, abs=5e-5)
    import tensorflow_datasets as tfds

    for split, start in (("train[:9]", 0), ("test[:9]", 60_000)):
      head = tfds.load("mnist", split=split, data_dir=folder, download=False)
      stored = [example["image"] for example in tfds.as_numpy(head)]
      np.testing.assert_array_equal(source.x[start : start + 9], stored)

  def test_cifar10_is_the_official_one(self, cifar10):
    assert cifar10.x.shape == (60_000, 32, 32, 3)
    assert cifar10.x.dtype == np.uint8
    assert cifar10.y.dtype == np.int32
    assert cifar10.num_train == 50_000
    assert cifar10.class_names == (
      "airplane",
      "automobile",
      "bird",
      "cat",
      "deer",
      "dog",
      "frog",
      "horse",
      "ship",
      "truck",
    )
    # Both splits are balanced.
    train, test = np.split(cifar10.y, [50_000])
    np.testing.assert_array_equal(np.bincount(train), [5000] * 10)
    np.testing.assert_array_equal(np.bincount(test), [1000] * 10)
    # The published means of red, green and blue; a copy that was stored as JPEG
    # is off by up to 0.01.
    means = cifar10.x[:50_000].mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=0.01)
