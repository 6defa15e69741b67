"""What figures of an evaluation show, checked by hand."""

import numpy as np
import pytest
from PIL import Image

import tff_shift as ts
from tests.fixtures import tables
from tests.fixtures.arrays import assert_close
from tff_shift.learning.metrics import reliability
from tff_shift.reporting.figures import evaluation_figures as figures


def marks(axes, marker):
  """Returns [x, y] of the lines with a marker."""
  return np.concatenate(
    [
      np.transpose(line.get_data())
      for line in axes.lines
      if line.get_marker() == marker
    ]
  )


class TestDistribution:
  def test_worst_percentile_and_median_are_marked(self):
    # Eleven clients, so that percentiles fall on clients; one has no value.
    first = [7, 3, np.nan, 9, 1, 5, 0, 8, 2, 6, 10, 4]
    figure = figures.distribution_over_clients({"a": first, "b": [40.0, 60.0]})
    (axes,) = figure.axes
    for marker, first_x, second_x in (("X", 0, 40), ("|", 1, 42), ("D", 5, 50)):
      expected = [[first_x, 0], [second_x, 1]]
      assert_close(marks(axes, marker), expected)
    points = marks(axes, "o")
    assert sorted(points[:11, 0]) == list(range(11))
    # Each row has its own points.
    assert np.all(np.abs(points[:11, 1]) < 0.5)
    assert "a: 11 clients, median 5, 10th percentile 1, worst 0" in (
      figure.alt_text
    )

  def test_of_losses_the_highest_is_the_worst(self):
    figure = figures.distribution_over_clients(
      {"a": np.arange(11.0)}, higher_is_better=False
    )
    (axes,) = figure.axes
    assert marks(axes, "X")[0, 0] == 10
    assert marks(axes, "|")[0, 0] == pytest.approx(9)

  def test_many_clients_are_a_density(self):
    figure = figures.distribution_over_clients(
      {"a": np.arange(300.0), "equal": np.full(300, 5.0)}
    )
    (axes,) = figure.axes
    (body,) = axes.collections
    x = body.get_paths()[0].vertices[:, 0]
    assert (x.min(), x.max()) == (0, 299)


class TestConfusionMatrix:
  def test_cells_have_percentages_of_the_row_and_counts(self):
    figure = figures.confusion_matrix([[3, 1], [0, 0]], ["cat", "dog"])
    axes = figure.axes[0]
    found = {text.get_position(): text.get_text() for text in axes.texts}
    # A class without examples has no percentages.
    assert found == {(0, 0): "75 %\n3", (1, 0): "25 %\n1"}
    assert "cat: 75 % of 4 right" in figure.alt_text
    assert "dog" not in figure.alt_text

  def test_predictions_that_are_not_finite_are_a_column_if_there_are_any(self):
    def columns(counts):
      axes = figures.confusion_matrix(counts, ["cat", "dog"]).axes[0]
      return [each.get_text() for each in axes.get_xticklabels()]

    assert columns([[3, 1, 0], [0, 2, 0]]) == ["cat", "dog"]
    assert columns([[3, 1, 0], [0, 2, 5]]) == ["cat", "dog", "not finite"]


class TestCalibration:
  # Bins (0.4, 0.5], (0.9, 1] of ten: accuracies of 1 and 1/3.
  CONFIDENCES = (0.5, 0.95, 1.0, 0.91)
  IS_CORRECT = (True, True, False, False)

  def test_bars_and_error(self):
    figure = figures.calibration(
      self.CONFIDENCES, self.IS_CORRECT, num_bins=10, title="mine"
    )
    upper, lower = figure.axes
    bars = [(bar.get_x(), bar.get_height()) for bar in upper.patches]
    assert_close(bars, [(40, 100), (90, 100 / 3)])
    shares = [bar.get_height() for bar in lower.patches]
    assert_close(shares, [25, 75])
    # (abs(1 - 0.5) + abs(1 - 2.86)) / 4
    assert upper.get_title(loc="left") == "mine: ECE 0.590"

  def test_figure_of_the_metric_has_its_error(self):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(500, 4)).astype(np.float32)
    y = rng.integers(0, 4, 500).astype(np.int32)
    sums = reliability.METRIC.per_example(logits, y).numpy().sum(axis=0)
    table = reliability.METRIC.value(sums[np.newaxis], [500.0])[0]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    one, other = (
      figures.calibration_of_bins(reliability.bins(table)),
      figures.calibration(p.max(axis=1), p.argmax(axis=1) == y),
    )
    titles = [each.axes[0].get_title(loc="left") for each in (one, other)]
    assert titles[0] == titles[1] and titles[0].startswith("ECE 0.")


class TestTimeline:
  def test_drifts_cross_both_panels_and_detections_are_marked(self):
    figure = figures.drift_timeline(
      {"fed_avg": [90, 50, 60, np.nan], "local": [[1, 2, 3, 4], [3, 4, 5, 6]]},
      [2, 4],
      {"adwin": [3], "quiet": [], "ddm": [2, 4]},
    )
    upper, lower = figure.axes
    for axes in (upper, lower):
      dashed = [
        line.get_xdata()[0]
        for line in axes.lines
        if line.get_linestyle() == "--" and len(line.get_xdata()) == 2
      ]
      assert dashed == [2, 4]
    np.testing.assert_array_equal(marks(lower, "v"), [[3, 0], [2, 2], [4, 2]])
    (mean,) = (line for line in upper.lines if line.get_label() == "local")
    np.testing.assert_array_equal(mean.get_ydata(), [2, 3, 4, 5])
    assert "with 2 drifts" in figure.alt_text
    assert "ddm detects 2" in figure.alt_text

  def test_without_detections_there_is_one_panel(self):
    assert len(figures.drift_timeline({"a": [1.0, 2.0]}, []).axes) == 1


@pytest.mark.parametrize(
  "name, arguments, message",
  tables.cases("""
"distribution_over_clients", [{}]
    at least 1 method
"distribution_over_clients", [{"a": [None]}]
    a: at least 1 client must have a value
"distribution_over_clients", [{"a": [[1.0]]}]
    a: values must be [num_clients]; got [1, 1]
"confusion_matrix", [[[1, 2, 3]], ["a"]]
    counts must be [1, 1] or [1, 2]
"confusion_matrix", [[[-1]], ["a"]]
    0 or more; got -1
"calibration", [[1.2], [True]]
    between 0 and 1
"calibration", [[0.2], [True, False]]
    must be [n]
"calibration", [[], []]
    at least 1 prediction
"drift_timeline", [{"a": [1, 2]}, [3]]
    drift_times: times must be steps from 1 to 2; got 3 to 3
"drift_timeline", [{"a": [1, 2], "b": [1]}, []]
    b: values must be [seeds, 2]
"""),
)
def test_wrong_values_are_refused(name, arguments, message, refusal):
  assert message in refusal(getattr(figures, name), *arguments)


def test_unknown_kind_is_refused(refusal):
  draw = figures.distribution_over_clients
  assert "kind" in refusal(draw, {"a": [1]}, kind="box")


def test_saved_twice_a_figure_gives_the_same_files(tmp_path):
  figure = ts.figures.distribution_over_clients(
    {"a $x$ b": [1.0, 2.0, 30.0]}, title="50 $ of 60 $"
  )
  size = figure.get_size_inches().tolist()
  found = []
  for name in ("one", "two"):
    path = ts.figures.save(figure, tmp_path / f"{name}.png")
    found.append((path.read_bytes(), path.with_suffix(".pdf").read_bytes()))
  assert found[0] == found[1]
  assert found[0][1].startswith(b"%PDF")
  assert figure.get_size_inches().tolist() == size
  with Image.open(tmp_path / "one.png") as image:
    assert image.width == 6.4 * 120
