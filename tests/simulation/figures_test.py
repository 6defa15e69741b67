import matplotlib.image
import numpy as np
import pytest

from tff_shift.simulation import drawing
from tff_shift.simulation import figures


def _read(path):
  """Returns a PNG file as [height, width, 3] uint8."""
  image = matplotlib.image.imread(path)
  return np.round(image[..., :3] * 255).astype(np.uint8)


def _count_pixels(path, color):
  """Counts pixels of exactly the color, given as '#rrggbb'."""
  wanted = [int(color[index : index + 2], 16) for index in (1, 3, 5)]
  return int(np.sum(np.all(_read(path) == wanted, axis=-1)))


_BLUE, _VERMILION, _GREEN = "#0072B2", "#D55E00", "#009E73"


class TestLearningCurves:
  def test_draws_one_color_per_curve_at_the_expected_size(self, tmp_path):
    path = tmp_path / "curves.png"
    rounds = np.arange(1, 21)
    result = figures.learning_curves(
      {
        "fed_avg": (rounds, [rounds * 2.0 - 3.0, rounds * 2.0 + 3.0]),
        "fed_evp": drawing.Curve(rounds, [rounds * 3.0]),
      },
      path,
      "Accuracy (%)",
      "title",
    )
    assert result == path
    assert _read(path).shape == (540, 960, 3)
    assert _count_pixels(path, _BLUE) > 500
    assert _count_pixels(path, _VERMILION) > 500
    assert _count_pixels(path, _GREEN) == 0


class TestAccuracyPerDomain:
  def _grey_columns(self, path):
    """Returns the columns of pixels inside the axes that are marked."""
    image = _read(path)[60, :760]
    return np.flatnonzero(np.all(image == 0xD9, axis=-1))

  def test_marks_the_target_domain(self, tmp_path):
    centers = []
    for target in (0, 3, 5):
      path = tmp_path / f"{target}.png"
      figures.accuracy_per_domain(
        {"fed_avg": [np.linspace(90, 40, 6)], "local": [[10.0] * 6]},
        [f"{15 * index}" for index in range(6)],
        target,
        path,
      )
      assert _read(path).shape == (540, 960, 3)
      assert _count_pixels(path, _BLUE) > 500
      assert _count_pixels(path, _VERMILION) > 500
      centers.append(self._grey_columns(path).mean())
    # The domains are equally spaced: 0 to 3 is 3 / 5 of 0 to 5.
    share = (centers[1] - centers[0]) / (centers[2] - centers[0])
    assert share == pytest.approx(0.6, abs=0.01)
    # The mark is as wide as a domain.
    width = np.ptp(self._grey_columns(path)) + 1
    assert width == pytest.approx((centers[2] - centers[0]) / 5, abs=2)

  def test_marks_nothing_without_a_target(self, tmp_path):
    path = tmp_path / "domains.png"
    names = [f"a rather long name {index}" for index in range(30)]
    figures.accuracy_per_domain({"fed_avg": [[50.0] * 30]}, names, None, path)
    assert self._grey_columns(path).size == 0
    assert _count_pixels(path, _BLUE) > 500


class TestExampleImages:
  def test_grid_holds_every_image_unchanged(self, tmp_path):
    generator = np.random.default_rng([7])
    shape = (2, 28, 28, 3)
    first = generator.integers(0, 256, shape, dtype=np.uint8)
    second = generator.integers(0, 256, (3, 28, 28), dtype=np.uint8)
    path = figures.example_images(
      {"0": first, "15": second}, tmp_path / "images.png"
    )
    picture = _read(path)
    # Each image pixel is 3 x 3 screen pixels; 4 pixels lie between images.
    left, top, cell = 20 + 10 * 2, 6, 3 * 28 + 4
    assert picture.shape == (6 + 2 * cell + 4 + 6, left + 3 * cell + 4 + 6, 3)

    def shown(row, column):
      y, x = top + 4 + row * cell, left + 4 + column * cell
      return picture[y : y + 84 : 3, x : x + 84 : 3]

    np.testing.assert_array_equal(shown(0, 0), first[0])
    np.testing.assert_array_equal(shown(0, 1), first[1])
    assert np.all(shown(0, 2) == 255)
    for column in range(3):
      grey = shown(1, column)
      np.testing.assert_array_equal(grey[..., 0], second[column])
      np.testing.assert_array_equal(grey[..., 0], grey[..., 2])

  def test_title_and_row_names_are_drawn(self, tmp_path):
    images = np.full((1, 8, 8, 1), 255, np.uint8)
    path = figures.example_images({"": images}, tmp_path / "plain.png")
    assert np.all(_read(path) == 255)
    named = figures.example_images({"row": images}, tmp_path / "named.png")
    assert np.any(_read(named) < 100)
    titled = figures.example_images(
      {"": images}, tmp_path / "titled.png", title="digits"
    )
    assert np.any(_read(titled)[:36] < 100)


class TestExampleTexts:
  def test_a_figure_is_as_high_as_it_has_lines(self, tmp_path):
    texts = {"2014": ["what is $new$", "a b"], "2015": ["long " * 40]}
    path = figures.example_texts(texts, tmp_path / "texts.png", "title")
    picture = _read(path)
    # 0.19 inches for the title, the three texts, and a space below each group.
    assert picture.shape == (int(0.19 * 120 * 7), 960, 3)
    assert (tmp_path / "texts.pdf").exists()
    is_dark = picture.min(axis=-1) < 128
    # The long text is cut before the edge; all lines have something.
    assert not is_dark[:, -12:].any()
    lines = np.flatnonzero(np.diff(is_dark.any(axis=1).astype(int)) == 1)
    assert len(lines) >= 4


class TestScatterDomains:
  def test_draws_each_domain_in_its_own_color(self, tmp_path):
    points, labels = {}, {}
    for index in range(3):
      # Twenty points of class 0 below and twenty of class 1 above.
      label = np.repeat([0, 1], 20).astype(np.int32)
      across = 5.0 * index + np.tile(np.linspace(0, 3, 20), 2)
      points[f"domain {index}"] = np.stack([across, label], axis=-1)
      labels[f"domain {index}"] = label
    path = figures.scatter_domains(points, labels, tmp_path / "points.png")
    picture = _read(path)
    assert picture.shape == (540, 960, 3)
    # Dark violet on the left, bright yellow-green on the right.
    plot = picture[40:400, 50:820].astype(int)
    colored = plot.max(axis=-1) - plot.min(axis=-1) > 60
    columns = np.flatnonzero(colored.any(axis=0))
    left = plot[:, columns[:40]][colored[:, columns[:40]]].mean(axis=0)
    right = plot[:, columns[-40:]][colored[:, columns[-40:]]].mean(axis=0)
    assert left[2] > left[1]
    assert right[1] > right[2]
    # Both classes are there, the second one with hollow markers.
    rows = np.flatnonzero(colored.any(axis=1))
    above, below = np.array_split(colored[rows.min() : rows.max() + 1], 2)
    assert 500 < above.sum() < 0.9 * below.sum()
