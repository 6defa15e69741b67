import subprocess
import sys

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

  def test_spread_fills_a_band_around_the_mean(self, tmp_path):
    heights = {}
    for spread in (10.0, 20.0):
      path = tmp_path / f"{spread}.png"
      # Two seeds that lie a root of a half of the deviation off their mean.
      off = spread / np.sqrt(2)
      curve = drawing.Curve(np.arange(10), [[3.0 - off] * 10, [3.0 + off] * 10])
      # A steep second curve holds the axes in place; the column of pixels below
      # meets neither it nor a marker.
      frame = drawing.Curve([8, 9], [[-60.0, 60.0]])
      figures.learning_curves({"a": curve, "b": frame}, path, "value")
      column = _read(path)[50:450, 180].astype(int)
      pale = (column[:, 2] - column[:, 0] > 20) & (column[:, 0] > 180)
      line = np.flatnonzero(column[:, 0] < 50).mean()
      rows = np.flatnonzero(pale)
      heights[spread] = (line - rows.min(), rows.max() - line)
    for above, below in heights.values():
      assert above == pytest.approx(below, abs=2)
    assert heights[10.0][0] > 20
    assert heights[20.0][0] == pytest.approx(2 * heights[10.0][0], abs=3)

  def test_draws_a_single_round_and_gaps(self, tmp_path):
    path = tmp_path / "curves.png"
    figures.learning_curves(
      {
        "a": ([1], [[50.0]]),
        "b": ([1, 2, 3], [[1.0, np.nan, 2.0], [1.1, np.nan, 2.1]]),
      },
      path,
      "value",
    )
    assert _count_pixels(path, _BLUE) > 50
    assert _count_pixels(path, _VERMILION) > 50

  def test_equal_input_gives_equal_files(self, tmp_path):
    for name in ("a.png", "b.png"):
      figures.learning_curves(
        {"a": ([1, 2], [[3.0, 4.0]])}, tmp_path / name, "value"
      )
    first, second = (tmp_path / name for name in ("a.png", "b.png"))
    assert first.read_bytes() == second.read_bytes()

  @pytest.mark.parametrize(
    ("curve", "message"),
    [
      (
        ([1, 2], [[1.0]]),
        r"fed_avg: values must be \[seeds, 2\]; got \[1, 1\]",
      ),
      (
        ([1, 2], [1.0, 2.0]),
        r"fed_avg: values must be \[seeds, 2\]; got \[2\]",
      ),
      (([], np.zeros((0, 0))), r"fed_avg: .*; got \[0, 0\]"),
    ],
  )
  def test_refuses_unequal_lengths(self, tmp_path, curve, message):
    with pytest.raises(ValueError, match=message):
      figures.learning_curves({"fed_avg": curve}, tmp_path / "c.png", "value")
    assert not (tmp_path / "c.png").exists()


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

  @pytest.mark.parametrize("target", [-1, 2])
  def test_refuses_a_target_that_is_no_domain(self, tmp_path, target):
    with pytest.raises(ValueError, match="target_index must be 0 to 1"):
      figures.accuracy_per_domain(
        {"a": [[1.0, 2.0]]}, ["x", "y"], target, tmp_path / "d.png"
      )

  def test_refuses_a_missing_domain(self, tmp_path):
    with pytest.raises(ValueError, match=r"a: values must be \[seeds, 2\]"):
      figures.accuracy_per_domain(
        {"a": [[1.0]]}, ["x", "y"], 1, tmp_path / "d.png"
      )


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

  @pytest.mark.parametrize(
    ("images", "message"),
    [
      ({"a": np.zeros((1, 8, 8), np.float32)}, "a must be uint8"),
      ({"a": np.zeros((8, 8), np.uint8)}, "a must be uint8"),
      ({"a": np.zeros((1, 8, 8, 2), np.uint8)}, "a must be uint8"),
      (
        {
          "a": np.zeros((1, 8, 8), np.uint8),
          "b": np.zeros((1, 9, 8), np.uint8),
        },
        "one size",
      ),
      ({}, "one size"),
    ],
  )
  def test_refuses_what_is_no_image(self, tmp_path, images, message):
    with pytest.raises(ValueError, match=message):
      figures.example_images(images, tmp_path / "images.png")


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

  @pytest.mark.parametrize(
    ("points", "labels", "message"),
    [
      (np.zeros([4, 3]), np.zeros(4), "points of a must be"),
      (np.zeros([4, 2]), np.zeros(3), "a: labels must have 4 entries"),
    ],
  )
  def test_refuses_wrong_shapes(self, tmp_path, points, labels, message):
    with pytest.raises(ValueError, match=message):
      figures.scatter_domains(
        {"a": points}, {"a": labels}, tmp_path / "points.png"
      )


@pytest.mark.slow
def test_figures_leave_the_host_application_alone(tmp_path):
  program = """
import sys
import matplotlib
matplotlib.use("svg")
matplotlib.rcParams["savefig.bbox"] = "tight"
before = dict(matplotlib.rcParams)
from tff_shift.simulation import figures
figures.learning_curves({"a": ([1, 2], [[1.0, 2.0]])}, sys.argv[1], "value")
assert dict(matplotlib.rcParams) == before
for module in ("matplotlib.pyplot", "tensorflow", "tensorflow_federated"):
  assert module not in sys.modules, module
"""
  path = tmp_path / "curves.png"
  subprocess.run([sys.executable, "-c", program, path], check=True)
  assert _read(path).shape == (540, 960, 3)
