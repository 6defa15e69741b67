import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import scipy.io
import scipy.ndimage
from PIL import Image
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


def write_emnist(folder, train, test):
  """Writes a tiny EMNIST with the writers of tensorflow-datasets.

  Args:
    folder: Where tensorflow-datasets puts its data sets.
    train: (image, label) pairs, as the official files hold them.
    test: The same of the test split.
  """
  import tensorflow_datasets as tfds

  class Emnist(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """The layout of the official builder, with other examples."""

    VERSION = tfds.core.Version("3.1.0")
    BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="letters"),)
    url_infos = None  # Nothing is downloaded, so no checksums are looked up.

    def _info(self):
      return self.dataset_info_from_configs(
        features=tfds.features.FeaturesDict({
          "image": tfds.features.Image(shape=(28, 28, 1)),
          "label": tfds.features.ClassLabel(num_classes=37),
        }),
        supervised_keys=("image", "label"),
        disable_shuffling=True,
      )

    def _split_generators(self, dl_manager):
      del dl_manager
      return {"train": self._examples(train), "test": self._examples(test)}

    def _generate_examples(self):
      raise AssertionError("the splits bring their own examples")

    @staticmethod
    def _examples(pairs):
      for key, (image, label) in enumerate(pairs):
        yield key, {"image": image, "label": label}

  with tfds.testing.disable_gcs_access():
    Emnist(config="letters", data_dir=folder).download_and_prepare()


class TestTfds:
  def test_emnist_is_upright_and_counts_from_zero(self, tmp_path):
    upright = np.zeros((28, 28, 1), np.uint8)
    upright[4:24, 8] = 255  # The letter L: a stroke down,
    upright[23, 8:20] = 255  # and one to the right.
    other = np.full((28, 28, 1), 7, np.uint8)
    stored = upright.transpose(1, 0, 2)
    write_emnist(tmp_path, [(stored, 12), (other, 1)], [(other, 26)])
    source = sources.load("emnist/letters", data_dir=tmp_path)
    np.testing.assert_array_equal(source.x, [upright, other, other])
    np.testing.assert_array_equal(source.y, [11, 0, 25])
    assert source.x.dtype == np.uint8
    assert source.x.flags.c_contiguous
    assert source.y.dtype == np.int32
    assert [source.class_names[y] for y in source.y] == ["L", "A", "Z"]

  def test_mnist_is_the_official_one(self):
    folder = os.environ.get("TFDS_DATA_DIR", "")
    if not (folder and (pathlib.Path(folder) / "mnist").is_dir()):
      pytest.skip("TFDS_DATA_DIR does not name a folder that holds mnist")
    source = sources.load("mnist")
    assert source.x.shape == (70_000, 28, 28, 1)
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


def write_portrait(folder, gender, name, image):
  path = folder / sources.PORTRAITS_FOLDER / gender / name
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.fromarray(image).save(path)


class TestPortraits:
  def test_portraits_carry_year_and_gender(self, tmp_path):
    flat = np.full((171, 186), 90, np.uint8)
    half = np.zeros((64, 64, 3), np.uint8)
    half[:, 32:] = 200  # Left half black, right half grey; stored as colour.
    write_portrait(tmp_path, "M", "1905_Ohio_Cleveland_Central_0-1.png", flat)
    write_portrait(tmp_path, "F", "2013_Texas_Dallas_0-2.png", half)
    write_portrait(tmp_path, "F", "1950_Iowa_Ames_0-1.png", flat)
    source = sources.load("portraits", data_dir=tmp_path)
    assert source.x.shape == (3, 32, 32, 1)
    assert source.x.dtype == np.uint8
    np.testing.assert_array_equal(source.time, [1950, 2013, 1905])
    assert [source.class_names[y] for y in source.y] == [
      "female",
      "female",
      "male",
    ]
    assert (source.y.dtype, source.time.dtype) == (np.int32, np.int32)
    assert np.all(source.x[0] == 90)
    assert np.all(source.x[1, :, :15] == 0)
    assert np.all(source.x[1, :, 17:] == 200)

  def test_name_without_year_is_refused(self, tmp_path):
    flat = np.zeros((8, 8), np.uint8)
    write_portrait(tmp_path, "F", "Ohio_1905.png", flat)
    with pytest.raises(ValueError) as error:
      sources.load("portraits", data_dir=tmp_path)
    assert_one_line(error, "Ohio_1905.png", "time")

  def test_file_broken_is_named(self, tmp_path):
    flat = np.random.default_rng(0).integers(0, 255, (64, 64)).astype(np.uint8)
    write_portrait(tmp_path, "F", "1905_Ohio.png", flat)
    path = tmp_path / sources.PORTRAITS_FOLDER / "F" / "1905_Ohio.png"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError) as error:
      sources.load("portraits", data_dir=tmp_path)
    assert_one_line(error, "1905_Ohio.png", "cannot be read as an image")


def write_caltran(folder, images, labels):
  """Writes images `{stem: array}` and the labels as the archive holds them."""
  archive = folder / "caltran"
  archive.mkdir()
  for stem, image in images.items():
    Image.fromarray(image).save(archive / f"{stem}.jpg", quality=95)
  stems = np.empty((len(images), 1), object)
  stems[:, 0] = list(images)
  scipy.io.savemat(
    archive / "caltran_dataset_labels.mat",
    {"names": stems, "labels": np.array([labels], np.float64)},
  )
  return archive


class TestCaltran:
  def test_caltran_carries_hour_and_label(self, tmp_path):
    red = np.zeros((240, 320, 3), np.uint8)
    red[..., 0] = 250
    blue = red[..., ::-1].copy()
    write_caltran(
      tmp_path,
      {
        "2013-03-04-23-57": red,
        "2013-03-05-00-03": blue,
        "2013-03-05-14-30": red,
      },
      [1, -1, -1],
    )
    source = sources.load("caltran", data_dir=tmp_path)
    assert source.x.shape == (3, 224, 224, 3)
    assert source.x.dtype == np.uint8
    np.testing.assert_array_equal(source.time, [23, 0, 14])
    assert [source.class_names[y] for y in source.y] == [
      "car",
      "no car",
      "no car",
    ]
    assert (source.y.dtype, source.time.dtype) == (np.int32, np.int32)
    # JPEG keeps a flat colour to within a few levels.
    np.testing.assert_allclose(source.x[0, 100, 100], [250, 0, 0], atol=5)
    np.testing.assert_allclose(source.x[1, 100, 100], [0, 0, 250], atol=5)

  def test_single_image_is_a_data_set_too(self, tmp_path):
    image = np.zeros((8, 8, 3), np.uint8)
    write_caltran(tmp_path, {"2013-03-04-07-00": image}, [1])
    source = sources.load("caltran", data_dir=tmp_path)
    np.testing.assert_array_equal(source.time, [7])

  def test_image_missing_is_named(self, tmp_path):
    image = np.zeros((8, 8, 3), np.uint8)
    names = ["2013-03-04-07-00", "2013-03-04-08-00"]
    archive = write_caltran(tmp_path, dict.fromkeys(names, image), [1, -1])
    (archive / "2013-03-04-08-00.jpg").unlink()
    with pytest.raises(ValueError) as error:
      sources.load("caltran", data_dir=tmp_path)
    assert_one_line(error, "2013-03-04-08-00.jpg")

  @pytest.mark.parametrize("stem", ["2013-03-04-24-00", "2013-03-04-0700"])
  def test_name_without_hour_is_refused(self, tmp_path, stem):
    image = np.zeros((8, 8, 3), np.uint8)
    write_caltran(tmp_path, {stem: image}, [1])
    with pytest.raises(ValueError) as error:
      sources.load("caltran", data_dir=tmp_path)
    assert_one_line(error, stem)

  def test_labels_too_few_are_refused(self, tmp_path):
    image = np.zeros((8, 8, 3), np.uint8)
    names = ["2013-03-04-07-00", "2013-03-04-08-00"]
    write_caltran(tmp_path, dict.fromkeys(names, image), [1])
    with pytest.raises(ValueError) as error:
      sources.load("caltran", data_dir=tmp_path)
    assert_one_line(error, "2 names", "1 labels")
