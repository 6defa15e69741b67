import matplotlib
import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from tff_shift.simulation import online_figures

_BLUE, _VERMILION, _GREY = (0, 114, 178), (213, 94, 0), (89, 89, 89)
# Left of this column are axes, right of it the legend.
_LEGEND = 740
# Where a legend of short names begins.
_END_OF_AXES = 845


def _pixels(path):
  """Returns a PNG file as [height, width, 3] uint8."""
  with Image.open(path) as image:
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def _rows_and_columns(pixels, color):
  """Returns where pixels have exactly this colour, [2, count]."""
  return np.stack(np.nonzero(np.all(pixels == color, axis=-1)))


class TestAccuracyOverTime:
  def test_omega_steps_below_on_the_same_time_axis(self, tmp_path):
    path = online_figures.accuracy_over_time(
      {"a": ([1, 2, 3, 4], [[50.0, 60.0, 50.0, 60.0]])},
      np.array([[0.0, 0.0, 1.0, 1.0, 0.0]]),
      tmp_path / "accuracy.png",
      ylabel="Accuracy (%)",
    )
    # The lower panel, without the labels at its left.
    panel = _pixels(path)[445:595, 80:]
    rows, columns = _rows_and_columns(panel, _GREY)
    low, high = rows.max(), rows.min()
    start, width = columns.min(), np.ptp(columns)
    raised = columns[rows == high]
    # 1 from step 1.5 to step 3.5 of 4: omega of a step is centred there.
    assert (raised.min() - start) / width == pytest.approx(1.5 / 4, abs=0.01)
    assert (raised.max() - start) / width == pytest.approx(3.5 / 4, abs=0.01)
    # Both levels lie inside the panel and have their full thickness.
    assert 5 < high < low < 145
    middle = columns == start + width // 2
    left = columns == start + width // 8
    assert np.sum(middle) == np.sum(left) >= 2
    # The accuracy starts with step 1, a quarter of the way.
    _, blue = _rows_and_columns(_pixels(path)[:, 80:_LEGEND], _BLUE)
    assert (blue.min() - start) / width == pytest.approx(1 / 4, abs=0.015)


class TestRatesOverTime:
  @pytest.mark.parametrize("num_steps", [1, 2, 100])
  def test_rates_stand_above_shifts_in_the_same_colors(
    self, tmp_path, num_steps
  ):
    constant = np.ones(num_steps)
    path = online_figures.rates_over_time(
      {"client 0": 3e-4 * constant, "client 7": 1e-4 * constant},
      {"client 7": 1.2 * constant, "client 0": 0.4 * constant},
      tmp_path / "rates.png",
      title="",
    )
    pixels = _pixels(path)
    assert pixels.shape == (660, 960, 3)
    upper, lower = pixels[:310, :_LEGEND], pixels[320:, :_LEGEND]
    row = {
      (name, color): _rows_and_columns(panel, color)[0].mean()
      for name, panel in (("upper", upper), ("lower", lower))
      for color in (_BLUE, _VERMILION)
    }
    # Client 0 has the larger rate, client 7 the larger shift.
    assert row["upper", _BLUE] < row["upper", _VERMILION]
    assert row["lower", _BLUE] > row["lower", _VERMILION]
    # One entry per client in the legend.
    for color in (_BLUE, _VERMILION):
      rows, _ = _rows_and_columns(pixels[:, _END_OF_AXES:], color)
      assert 0 < np.ptp(rows) < 15

  def test_every_peak_of_clients_that_jump_together_is_seen(self, tmp_path):
    shift = np.zeros(100)
    shift[5::10] = 1.0
    series = {"low": 0.6 * shift, "high": shift}
    path = online_figures.rates_over_time(
      series, series, tmp_path / "rates.png", title=""
    )
    panel = _pixels(path)[320:, 90:_LEGEND]
    # The markers of the lower peaks, drawn first, far above the base line.
    rows, _ = _rows_and_columns(panel, _BLUE)
    assert np.sum(rows < 150) > 10 * 10


class TestClassDistributions:
  def _color(self, probability):
    """Returns the colour of a probability: its root on the viridis scale."""
    color = matplotlib.colormaps["viridis"](probability**0.5, bytes=True)
    return tuple(color[:3])

  def test_both_sides_have_one_color_scale(self, tmp_path):
    # Three steps and two classes; no 1 on the left and no 0.09 on the right.
    path = online_figures.class_distributions(
      np.array([[0.09, 0.26], [0.26, 0.26], [0.26, np.nan]]),
      np.array([[1.0, 0.0], [0.26, 0.26], [0.26, 0.26]]),
      ("cat", "dog"),
      tmp_path / "classes.png",
      title="Classes of client 0",
    )
    pixels = _pixels(path)
    assert pixels.shape == (540, 960, 3)
    # Left of the colour bar.
    panels = pixels[:, :840]
    box = {}
    for name, color in (
      ("0.09", self._color(0.09)),
      ("0", self._color(0.0)),
      ("1", self._color(1.0)),
      ("NaN", (216, 216, 216)),
    ):
      # The largest patch: a few pixels of the letters have this grey, too.
      patches, _ = ndimage.label(np.all(panels == color, axis=-1))
      sizes = np.bincount(patches.flat)[1:]
      rows, columns = np.nonzero(patches == 1 + sizes.argmax())
      box[name] = (rows.min(), rows.max(), columns.min(), columns.max())
      # It is a cell, filled.
      area = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
      assert 10000 < area == pytest.approx(sizes.max(), rel=0.01)
    # Time runs to the right, the first class is at the top.
    top, bottom, left, right = range(4)
    assert box["0.09"][right] < box["NaN"][left] < box["1"][left]
    assert box["0.09"][bottom] < box["NaN"][top]
    assert box["1"][bottom] < box["0"][top]
    assert box["1"][left] == pytest.approx(box["0"][left], abs=1)
    # The same probability has the same colour on both sides: four cells each.
    _, columns = _rows_and_columns(panels, self._color(0.26))
    between = (box["NaN"][right] + box["1"][left]) / 2
    assert np.sum(columns < between) == pytest.approx(4 * area, rel=0.03)
    assert np.sum(columns > between) == pytest.approx(4 * area, rel=0.03)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    ("num_classes", "num_labels"), [(10, 10), (100, 15), (200, 16)]
  )
  def test_labels_of_many_classes_are_thinned(
    self, tmp_path, num_classes, num_labels
  ):
    steps = np.linspace(0, 1, 100)[:, np.newaxis]
    last = np.random.default_rng([3]).dirichlet(np.full(num_classes, 0.1))
    values = (1 - steps) / num_classes + steps * last
    path = online_figures.class_distributions(
      values,
      values,
      ["xxxxxxxx"] * num_classes,
      tmp_path / "classes.png",
      title="",
    )
    pixels = _pixels(path)
    # Dark pixels in the column of the names; between names lies a free row.
    dark = np.any(pixels[:, 50:100].max(axis=-1) < 100, axis=1)
    assert ndimage.label(dark)[1] == num_labels


class TestShiftScatter:
  def test_draws_one_point_per_client(self, tmp_path):
    path = online_figures.shift_scatter(
      {"linear": np.arange(20.0), "sine": np.arange(20.0)},
      {"linear": np.arange(20.0) ** 2, "sine": np.arange(20.0) + 500},
      tmp_path / "shift.png",
      xlabel="True cumulative shift",
      ylabel="Cumulative S",
      title="",
    )
    pixels = _pixels(path)
    assert pixels.shape == (540, 960, 3)
    red, _, blue = pixels[:470, 75:_END_OF_AXES].astype(int).transpose(2, 0, 1)
    # No line between the points.
    linear, num_linear = ndimage.label(blue - red > 80)
    assert num_linear == ndimage.label(red - blue > 80)[1] == 20
    # In the order of their columns, true shifts lie evenly, and the measured
    # ones grow as they were given.
    centers = np.array(ndimage.center_of_mass(linear > 0, linear, range(1, 21)))
    rows, columns = centers[np.argsort(centers[:, 1])].T
    np.testing.assert_allclose(np.diff(columns), np.ptp(columns) / 19, atol=1)
    np.testing.assert_allclose(
      (rows[0] - rows) / np.ptp(rows), (np.arange(20) / 19) ** 2, atol=0.01
    )


class TestLinesWithSlopes:
  def test_powers_are_straight_lines_of_their_slope(self, tmp_path):
    x = np.array([10, 20, 50, 100, 400])
    path = online_figures.lines_with_slopes(
      x,
      {"two thirds": [3 * x ** (2 / 3)], "one third": [x ** (1 / 3)]},
      {"T^(2/3)": 9 * x ** (2 / 3)},
      tmp_path / "regret.png",
      xlabel="Time steps",
      ylabel="Regret",
    )
    pixels = _pixels(path)
    assert pixels.shape == (540, 960, 3)
    plot = pixels[:470, 80:_LEGEND]
    slopes = []
    for color in (_BLUE, _VERMILION, _GREY):
      rows, columns = _rows_and_columns(plot, color)
      slope, offset = np.polyfit(columns, rows, 1)
      # Nothing is farther away than the edge of a marker.
      assert np.max(np.abs(slope * columns + offset - rows)) < 6
      slopes.append(slope)
    assert slopes[0] / slopes[1] == pytest.approx(2, rel=0.02)
    assert slopes[0] / slopes[2] == pytest.approx(1, rel=0.02)

  def test_only_the_reference_is_dashed(self, tmp_path):
    x = np.geomspace(10, 1000, 5)
    path = online_figures.lines_with_slopes(
      x, {"a": [x]}, {"b": 2 * x}, tmp_path / "a.png", xlabel="", ylabel=""
    )
    plot = _pixels(path)[:, 80:_LEGEND]
    pieces = {}
    for color in (_BLUE, _GREY):
      columns = np.unique(_rows_and_columns(plot, color)[1])
      pieces[color] = 1 + np.sum(np.diff(columns) > 3)
    assert pieces[_BLUE] == 1
    assert pieces[_GREY] > 20
