import numpy as np
from PIL import Image

from tff_shift.simulation import drawing
from tff_shift.simulation import dynamic_figures

_BLUE = (0, 114, 178)
_GREY, _PALE = (89, 89, 89), (217, 217, 217)
# Left of this column are axes, right of it the legend.
_LEGEND = 740


def _panel(path):
  """Returns the axes of a PNG file as [height, width, 3] uint8."""
  with Image.open(path) as image:
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))[:, 75:_LEGEND]


def _columns(panel, color, num_rows=1):
  """Returns the columns that have a colour, give or take one, in some rows."""
  close = np.all(np.abs(panel.astype(int) - color) <= 1, axis=-1)
  return np.flatnonzero(close.sum(axis=0) >= num_rows)


def _rows(panel, color):
  return _columns(panel.transpose(1, 0, 2), color)


def _runs(positions):
  """Returns how many runs without a gap positions make."""
  return 1 + int(np.sum(np.diff(positions) > 1)) if positions.size else 0


def _curve(*by_seed):
  return drawing.Curve(np.arange(1, len(by_seed[0]) + 1), by_seed)


class TestAccuracyOverPeriods:
  def draw(self, tmp_path, **changes):
    arguments = {
      "curves": {"a": _curve([60, 70, 70, 80]), "b": _curve([50, 50, 40, 30])},
      "validation": {"a": [90], "b": [20]},
      "drifted": [[0, 0, 100, 0]],
      "detected": [[0, 0, 100, 0]],
      **changes,
    }
    return dynamic_figures.accuracy_over_periods(
      **arguments, path=tmp_path / "accuracy.png"
    )

  def test_validation_accuracy_is_a_short_line_left_of_the_curve(
    self, tmp_path, monkeypatch
  ):
    monkeypatch.setattr(drawing, "save", lambda figure, path: figure)
    upper, _ = self.draw(tmp_path).axes
    *curves, above, below, _ = upper.lines
    for line, curve, accuracy in zip(
      (above, below), curves, (90, 20), strict=True
    ):
      assert line.get_color() == curve.get_color()
      assert list(line.get_ydata()) == [accuracy, accuracy]
      left, right = line.get_xdata()
      assert 0.5 < left < right < min(curve.get_xdata()) == 1

  def test_bars_are_drifts_and_points_what_is_detected(self, tmp_path):
    panel = _panel(self.draw(tmp_path, detected=[[0, 100, 0, 0]]))
    lower = panel[int(0.7 * len(panel)) :]
    # Text has that grey at its edges, in a few rows.
    bar = _columns(lower, _PALE, num_rows=50)
    assert _runs(bar) == 1
    # The third of four periods, and a wide bar.
    assert 0.5 < bar.mean() / panel.shape[1] < 0.8
    assert len(bar) > 80
    high = _columns(lower[: len(lower) // 3], _GREY)
    assert high.max() < bar.min()


class TestDistanceOverPeriods:
  def draw(self, tmp_path, threshold=5.0, drifted=(False, True, False, True)):
    return dynamic_figures.distance_over_periods(
      [1.0, 9.0, 2.0, 8.0],
      drifted,
      threshold,
      tmp_path / "distance.png",
      title="client",
    )

  def test_bands_are_drifts(self, tmp_path):
    panel = _panel(self.draw(tmp_path))
    # The row at the top has bands and no line.
    bands = _columns(panel[45:50], _PALE)
    assert _runs(bands) == 2
    none = _panel(self.draw(tmp_path, drifted=[False] * 4))
    assert not _columns(none[45:50], _PALE).size

  def test_points_lie_above_the_threshold(self, tmp_path):
    panel = _panel(self.draw(tmp_path))
    rows = _rows(panel[60:480], _GREY)
    # A line, and no other grey but the ticks' text outside.
    assert rows.size and np.ptp(rows) <= 3
    dashes = _columns(panel[60:480], _GREY)
    assert _runs(dashes) > 10
    # Points are thicker than the line.
    blue = np.all(panel == _BLUE, axis=-1)
    wide = np.flatnonzero([_longest(row) >= 7 for row in blue])
    assert wide.size and wide.max() < rows.min() + 60

  def test_no_threshold_and_no_points_at_infinity(self, tmp_path):
    panel = _panel(self.draw(tmp_path, threshold=np.inf))
    assert not _rows(panel[60:480], _GREY).size
    blue = np.all(panel == _BLUE, axis=-1)
    assert max(map(_longest, blue)) < 7


def _longest(row) -> int:
  """Returns the length of the longest run of True."""
  edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(int), [0]])))
  return int(np.max(np.diff(edges)[::2], initial=0))
