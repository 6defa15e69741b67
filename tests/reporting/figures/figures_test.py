import matplotlib.image
import numpy as np
import pytest

from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import assert_equal
from tff_shift.data.images import color_transforms
from tff_shift.reporting.figures import drawing
from tff_shift.reporting.figures import figures
from tff_shift.scenarios.dynamic_personalization import figures as dynamic
from tff_shift.scenarios.guidance import figures as guidance_figures
from tff_shift.scenarios.online_adaptation import figures as online


def _read(path):
  """Returns a PNG file as [height, width, 3] uint8."""
  image = matplotlib.image.imread(path)
  return np.round(image[..., :3] * 255).astype(np.uint8)


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

    assert_equal(shown(0, 0), first[0])
    assert_equal(shown(0, 1), first[1])
    assert np.all(shown(0, 2) == 255)
    for column in range(3):
      assert_equal(
        shown(1, column), second[column][..., np.newaxis].repeat(3, axis=-1)
      )


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


def _data(lines):
  """Returns what lines show, by their colour."""
  return {line.get_color(): line.get_ydata() for line in lines}


def _image(axes):
  (image,) = axes.images
  return image


@pytest.mark.usefixtures("kept")
class TestDomains:
  @pytest.mark.parametrize("target", [3, None])
  def test_target_is_marked_as_wide_as_a_domain(self, target):
    (axes,) = figures.accuracy_per_domain(
      {"a": [np.linspace(90, 40, 6)], "b": [[10.0] * 6]}, "uvwxyz", target, None
    ).axes
    marks = [patch.get_bbox().bounds for patch in axes.patches]
    expected = [] if target is None else [(target - 0.5, 0, 1, 1)]
    assert marks == expected
    found = _data(axes.lines)
    assert_equal(found[drawing.COLORS[0]], np.linspace(90, 40, 6))
    assert_equal(found[drawing.COLORS[1]], [10] * 6)

  def test_points_have_the_color_of_their_domain_and_the_form_of_a_class(self):
    labels = np.array([0, 1])
    points = {
      "c": np.array([[0, 0.0], [1, 1]]),
      "d": np.array([[5, 0.0], [6, 1]]),
    }
    axes, _ = figures.scatter_domains(
      points, dict.fromkeys(points, labels), None
    ).axes
    shown = [each for each in axes.collections if len(each.get_offsets())]
    assert_equal(
      np.concatenate([each.get_offsets() for each in shown]),
      np.concatenate(list(points.values())),
    )
    edges = [tuple(each.get_edgecolor()[0]) for each in shown]
    assert edges[0] == edges[1] != edges[2] == edges[3]
    # The second class is hollow.
    assert [len(each.get_facecolor()) for each in shown] == [1, 0, 1, 0]


@pytest.mark.usefixtures("kept")
class TestOnline:
  @pytest.mark.parametrize("num_steps", [1, 100])
  def test_rates_stand_above_shifts_in_the_same_colors(self, num_steps):
    one = np.ones(num_steps)
    rates = {"client 0": 3e-4 * one, "client 7": one}
    shifts = {"client 7": 1.2 * one, "client 0": 0 * one}
    figure = online.rates_over_time(rates, shifts, None, title="")
    for axes, series in zip(figure.axes, (rates, shifts), strict=True):
      found = _data(axes.lines)
      assert list(found) == list(drawing.COLORS[:2])
      for name, values in zip(rates, found.values(), strict=True):
        assert_equal(values, series[name])
      # A single step is seen.
      assert all(line.get_marker() in "os" for line in axes.lines)
    (legend,) = figure.legends
    assert [each.get_text() for each in legend.get_texts()] == list(rates)

  def test_both_sides_have_one_color_scale(self):
    estimated = np.array([[0.09, 0.26], [0.26, 0.26], [0.26, np.nan]])
    true = np.array([[1.0, 0.0], [0.26, 0.26], [0.26, 0.26]])
    figure = online.class_distributions(
      estimated, true, ("cat", "dog"), None, title=""
    )
    left, right = map(_image, figure.axes[:2])
    for image, values in ((left, estimated), (right, true)):
      # Time runs to the right, the first class is at the top.
      assert_equal(image.get_array().filled(np.nan), values.T)
      assert image.get_extent() == [0.5, 3.5, 1.5, -0.5]
      assert image.cmap.name == "viridis"
      assert_close(image.cmap.get_bad(), [0.85, 0.85, 0.85, 1])
    assert left.norm is right.norm
    # The root of a probability.
    assert_close(left.norm([0, 0.25, 1]), [0, 0.5, 1])

  @pytest.mark.parametrize("num_classes, num_labels", [(10, 10), (200, 16)])
  def test_labels_of_many_classes_are_thinned(self, num_classes, num_labels):
    values = np.full((9, num_classes), 1 / num_classes)
    figure = online.class_distributions(
      values, values, ["xxxxxxxx"] * num_classes, None, title=""
    )
    shown = [each.get_text() for each in figure.axes[0].get_yticklabels()]
    assert shown == ["xxxxxxxx"] * num_labels

  def test_shift_has_one_point_per_client(self):
    (axes,) = online.shift_scatter(
      {"linear": np.arange(20.0)},
      {"linear": np.arange(20.0) ** 2},
      None,
      **{"xlabel": "", "ylabel": "", "title": ""},
    ).axes
    (points,) = axes.lines
    assert points.get_linestyle() == "None"
    assert_equal(points.get_xdata(), np.arange(20))
    assert_equal(points.get_ydata(), np.arange(20) ** 2)


@pytest.mark.usefixtures("kept")
class TestGuidance:
  def test_each_client_has_its_image_in_reading_order(self):
    orange = np.full((8, 8, 3), (240, 180, 120), np.uint8)
    transforms = color_transforms.pool(8)
    figure = guidance_figures.client_transforms(orange, transforms, None)
    places = []
    for client, transform in enumerate(transforms):
      axes = figure.axes[client]
      assert axes.get_title().startswith(f"client {client}: ")
      assert_equal(
        _image(axes).get_array(),
        color_transforms.apply(orange[np.newaxis], transform)[0],
      )
      left, bottom, *_ = axes.get_position().bounds
      places.append((-round(bottom, 3), left))
    assert places == sorted(places) and places[0][0] < places[4][0]
    many = guidance_figures.client_transforms(
      orange, color_transforms.pool(32), None
    )
    assert many.get_figheight() > 2 * figure.get_figheight()

  def test_bars_show_sizes_and_cells_show_classes(self):
    counts = np.array([[30, 10], [80, 0], [0, 20]])
    bars, cells, _ = guidance_figures.class_counts(
      counts, ["cat", "dog"], None, title=""
    ).axes
    assert [bar.get_height() for bar in bars.patches] == [40, 80, 20]
    assert_equal(_image(cells).get_array(), counts.T)
    assert _image(cells).get_clim() == (0, 80)

  def test_routes_are_in_percent_of_their_row(self):
    axes, _ = guidance_figures.routing_matrix(
      np.array([[7, 0, 0], [100, 300, 0], [0, 0, 0]]), None, title=""
    ).axes
    # From above to below: the client of the query. Without any it is grey.
    assert_equal(
      _image(axes).get_array().filled(-1),
      [[100, 0, 0], [25, 75, 0], [-1, -1, -1]],
    )
    assert_close(_image(axes).cmap.get_bad(), [0.85] * 3 + [1])
    assert _image(axes).origin == "upper"

  @pytest.mark.parametrize(
    "num_clients, has_numbers", [(16, True), (17, False)]
  )
  def test_numbers_stand_in_cells_of_few_clients(
    self, num_clients, has_numbers
  ):
    axes, _ = guidance_figures.routing_matrix(
      np.eye(num_clients), None, title=""
    ).axes
    assert len(axes.texts) == has_numbers * num_clients**2


@pytest.mark.usefixtures("kept")
class TestDynamic:
  def test_validation_accuracy_is_a_short_line_before_the_first_period(self):
    curves = {"a": [60, 70, 70, 80], "b": [50, 50, 40, 30]}
    upper, _ = dynamic.accuracy_over_periods(
      {k: drawing.Curve([1, 2, 3, 4], [v]) for k, v in curves.items()},
      {"a": [90], "b": [20]},
      *[[[0, 0, 100, 0]]] * 2,
      None,
    ).axes
    *lines, above, below, _ = upper.lines
    for short, curve, accuracy in zip(
      (above, below), lines, (90, 20), strict=True
    ):
      assert short.get_color() == curve.get_color()
      assert list(short.get_ydata()) == [accuracy, accuracy]
      left, right = short.get_xdata()
      assert 0.5 < left < right < min(curve.get_xdata()) == 1

  @pytest.mark.parametrize(
    "threshold, detected", [(5.0, [(2, 9), (4, 8)]), (np.inf, [])]
  )
  def test_bands_are_drifts_and_points_lie_above_the_threshold(
    self, threshold, detected
  ):
    (axes,) = dynamic.distance_over_periods(
      [1.0, 9.0, 2.0, 8.0],
      (False, True, False, True),
      threshold,
      None,
      title="",
    ).axes
    assert [each.get_bbox().bounds[::2] for each in axes.patches] == [
      (1.5, 1),
      (3.5, 1),
    ]
    curve, *others = axes.lines
    assert list(curve.get_ydata()) == [1, 9, 2, 8]
    points = [
      p
      for line in others
      for p in zip(*line.get_data(), strict=True)
      if line.get_marker() == "o"
    ]
    assert points == detected
    levels = [
      line.get_ydata()[0] for line in others if line.get_linestyle() == "--"
    ]
    assert levels == [5.0] * int(np.isfinite(threshold))
