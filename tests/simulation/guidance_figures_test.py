import matplotlib
import numpy as np
import pytest
from PIL import Image

from tff_shift.data import color_transforms
from tff_shift.simulation import guidance_figures

_BLUE, _VERMILION = (0, 114, 178), (213, 94, 0)
# Left of this column are axes, right of it the colour bar or the legend.
_BAR, _LEGEND = 830, 725


def _pixels(path):
  """Returns a PNG file as [height, width, 3] uint8."""
  with Image.open(path) as image:
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def _box(pixels, color):
  """Returns top, bottom, left and right of all pixels of exactly a colour."""
  rows, columns = np.nonzero(np.all(pixels == color, axis=-1))
  return rows.min(), rows.max(), columns.min(), columns.max()


def _shade(share):
  """Returns the colour of a share of the scale."""
  return tuple(matplotlib.colormaps["viridis"](share, bytes=True)[:3])


class TestClientTransforms:
  def test_each_client_has_its_image_in_reading_order(self, tmp_path):
    orange = np.full((8, 8, 3), (240, 180, 120), np.uint8)
    transforms = color_transforms.pool(8)
    path = guidance_figures.client_transforms(
      orange, transforms, tmp_path / "transforms.png"
    )
    assert path == tmp_path / "transforms.png"
    pixels = _pixels(path)
    assert pixels.shape == (576, 960, 3)
    boxes = []
    for transform in transforms:
      color = color_transforms.apply(orange[None], transform)[0, 0, 0]
      top, bottom, left, right = _box(pixels, color)
      # It is a square, filled, and large.
      assert right - left > 150
      assert bottom - top == pytest.approx(right - left, abs=1)
      assert np.all(pixels[top : bottom + 1, left : right + 1] == color)
      boxes.append((top, left))
    assert boxes == sorted(boxes)
    assert [left for _, left in boxes[:4]] == [left for _, left in boxes[4:]]
    # Above each image stands its caption.
    for top, left in boxes:
      assert np.any(pixels[top - 30 : top - 5, left : left + 200] < 100)

  @pytest.mark.slow
  def test_many_clients_make_a_higher_figure(self, tmp_path):
    sample = np.zeros((4, 4, 3), np.uint8)
    path = guidance_figures.client_transforms(
      sample, color_transforms.pool(32), tmp_path / "transforms.png"
    )
    assert _pixels(path).shape == (1680, 960, 3)


class TestClassCounts:
  def test_bars_show_sizes_and_cells_show_classes(self, tmp_path):
    path = guidance_figures.class_counts(
      np.array([[30, 10], [80, 0], [0, 20]]),
      ["cat", "dog"],
      tmp_path / "counts.png",
      title="",
    )
    pixels = _pixels(path)
    assert pixels.shape == (660, 960, 3)
    # Three bars of 40, 80 and 20 examples.
    upper = np.all(pixels[:, :_BAR] == _BLUE, axis=-1)
    heights = upper.sum(axis=0)
    starts = np.flatnonzero(np.diff((heights > 5).astype(int)) == 1)
    bars = heights[starts + 20]
    np.testing.assert_allclose(bars / bars.max(), [0.5, 1, 0.25], atol=0.03)
    # The class that has most, 80, and an empty one lie below the second bar.
    lower = pixels[200:, :_BAR]
    top, bottom, left, right = _box(lower, _shade(1.0))
    assert left < starts[1] < right
    assert bottom - top > 100
    cells = [lower[(top + bottom) // 2, start + 20] for start in starts]
    below = [
      lower[bottom + (bottom - top) // 2, start + 20] for start in starts
    ]
    np.testing.assert_array_equal(
      cells, [_shade(30 / 80), _shade(1.0), _shade(0.0)]
    )
    np.testing.assert_array_equal(
      below, [_shade(10 / 80), _shade(0.0), _shade(20 / 80)]
    )


class TestRoutingMatrix:
  def test_rows_are_shown_in_percent_of_their_sum(self, tmp_path):
    # 100 and 0 %, then 25 and 75 % of other numbers of queries.
    path = guidance_figures.routing_matrix(
      np.array([[7, 0], [100, 300]]), tmp_path / "routing.png", title=""
    )
    pixels = _pixels(path)
    assert pixels.shape == (540, 960, 3)
    panel = pixels[:, 60:_BAR]
    boxes = {
      share: _box(panel, _shade(share)) for share in (1.0, 0.0, 0.25, 0.75)
    }
    top, bottom, left, right = range(4)
    # From above to below: the client of the query; from left to right: where
    # it is guided to.
    assert boxes[1.0][right] < boxes[0.0][left] + 2
    assert boxes[1.0][bottom] < boxes[0.25][top] + 2
    assert boxes[0.75][left] > boxes[0.25][right] - 2
    assert boxes[0.75][top] > boxes[0.0][bottom] - 2

  @pytest.mark.parametrize(("num_clients", "has_numbers"), [(16, 1), (17, 0)])
  def test_numbers_stand_in_cells_of_few_clients(
    self, tmp_path, num_clients, has_numbers
  ):
    path = guidance_figures.routing_matrix(
      np.eye(num_clients), tmp_path / "routing.png", title=""
    )
    panel = _pixels(path)[40:440, 100:700]
    # White digits on the dark cells outside the diagonal.
    assert np.any(np.all(panel > 250, axis=-1)) == has_numbers

  def test_row_without_queries_stays_grey(self, tmp_path):
    path = guidance_figures.routing_matrix(
      np.array([[1, 1], [0, 0]]), tmp_path / "routing.png", title=""
    )
    panel = _pixels(path)[:, 60:_BAR]
    grey = np.all(panel == 217, axis=-1) | np.all(panel == 216, axis=-1)
    rows = np.nonzero(grey.sum(axis=1) > 500)[0]
    assert rows.min() > 200
    assert np.ptp(rows) > 150


class TestTradeOff:
  def test_draws_each_accuracy_over_the_weight(self, tmp_path):
    path = guidance_figures.trade_off(
      [0.1, 0.3, 0.9],
      {
        "client": [[90, 80, 50]],
        "system": [[48.6, 58.6, 88.6], [51.4, 61.4, 91.4]],
      },
      tmp_path / "trade_off.png",
    )
    pixels = _pixels(path)
    assert pixels.shape == (540, 960, 3)
    panel = pixels[:, 75:_LEGEND]
    for color, first, last in ((_BLUE, 90, 50), (_VERMILION, 50, 90)):
      rows, columns = np.nonzero(np.all(panel == color, axis=-1))
      start, end = columns.min(), columns.max()
      # Half a marker before the first and after the last weight.
      rising = rows[columns == start].mean() > rows[columns == end].mean()
      assert rising == (last > first)
      assert end - start > 500
    # A pale band around the curve that has a spread, and no other.
    red, _, blue = panel.astype(int).transpose(2, 0, 1)
    pale = panel.min(axis=-1) > 180
    assert np.sum(pale & (red - blue > 20)) > 3000
    assert np.sum(pale & (blue - red > 20)) < 2000
