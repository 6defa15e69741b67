"""Tests of what figures draw and explain, and of the files that they leave."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import collections
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.colors import to_hex
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image

from experiments import dynamic_regret
from tests.fixtures.arrays import assert_close
from tff_shift._util import files
from tff_shift.reporting.figures import drawing
from tff_shift.reporting.figures import figures
from tff_shift.scenarios.dynamic_personalization import figures as dynamic
from tff_shift.scenarios.guidance import figures as guidance_figures
from tff_shift.scenarios.online_adaptation import figures as online

# Three seeds, three points; the middle one has no spread.
_BY_SEED = np.array([[1.0, 5.0, 2.0], [2.0, 5.0, 4.0], [6.0, 5.0, 9.0]])
# By hand: of 1, 2, 6 the squares of the distances to 3 are 4, 1, 9; of 2, 4, 9
# those to 5 are 9, 1, 16. Two degrees of freedom are left.
_MEAN = [3.0, 5.0, 5.0]
_SPREAD = [math.sqrt(7), 0.0, math.sqrt(13)]
_OF_SEEDS = "one standard\ndeviation over 3 seeds"


def _bands(axes):
  """Returns what lies between [low, high] at each x, for each band."""
  found = []
  for each in axes.collections:
    if (
      type(each) is collections.PolyCollection or "Fill" in type(each).__name__
    ):
      for path in each.get_paths():
        x, y = path.vertices.T
        found.append(
          {
            value: (y[x == value].min(), y[x == value].max())
            for value in np.unique(x)
          }
        )
  return found


def _error_bars(axes):
  """Returns [x, low, high] of the error bars that were drawn, by colour."""
  found = {}
  for container in axes.containers:
    if not hasattr(container, "has_yerr"):
      continue
    (lines,) = container.lines[2]
    color = to_hex(lines.get_color()[0])
    for segment in lines.get_segments():
      (x, low), (_, high) = segment
      found.setdefault(color, []).append([x, low, high])
  return {color: np.array(bars) for color, bars in found.items()}


def _legend(figure):
  (legend,) = figure.legends
  return [text.get_text() for text in legend.get_texts()]


def _assert_bars(bars, x):
  # None where there is no spread.
  low, high = np.subtract(_MEAN, _SPREAD), np.add(_MEAN, _SPREAD)
  assert_close(bars, np.transpose([x, low, high])[[0, 2]])


def _assert_band(band, x):
  assert list(band) == list(x)
  for value, mean, spread in zip(x, _MEAN, _SPREAD, strict=True):
    assert_close(band[value], (mean - spread, mean + spread))


@pytest.mark.usefixtures("kept")
class TestSpread:
  def test_curves_have_the_mean_and_a_band(self):
    figure = figures.learning_curves(
      {"a": drawing.Curve([1, 2, 4], _BY_SEED)}, None, "value"
    )
    (axes,) = figure.axes
    assert_close(axes.lines[0].get_ydata(), _MEAN)
    (band,) = _bands(axes)
    _assert_band(band, (1, 2, 4))
    assert _legend(figure) == ["a", f"band: {_OF_SEEDS}"]

  def test_domains_have_error_bars_side_by_side(self):
    figure = figures.accuracy_per_domain(
      {"a": _BY_SEED, "b": _BY_SEED}, ["x", "y", "z"], 2, None
    )
    (axes,) = figure.axes
    bars = _error_bars(axes)
    # Half a domain is dealt out to both.
    for color, offset in zip(drawing.COLORS, (-0.125, 0.125), strict=False):
      _assert_bars(bars.pop(color.lower()), np.arange(3) + offset)
    assert not bars
    assert _legend(figure) == [
      "target (held out)",
      "a",
      "b",
      f"bar: {_OF_SEEDS}",
    ]

  def test_one_seed_has_no_spread_to_explain(self):
    figure = figures.accuracy_per_domain({"a": [[1.0, 2.0]]}, "xy", None, None)
    (axes,) = figure.axes
    assert not axes.containers
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [0, 1])
    assert _legend(figure) == ["a"]

  def test_omega_steps_below_with_a_band(self):
    curve = drawing.Curve([1, 2], [[5.0, 6.0]])
    omega = np.array([[0, 0, 1], [0, 1, 1]])
    figure = online.accuracy_over_time({"a": curve}, omega, None, ylabel="")
    upper, lower = figure.axes
    assert not _bands(upper)
    assert list(upper.lines[0].get_xdata()) == [1, 2]
    (line,) = lower.lines
    assert_close(line.get_data(), [[0, 1, 2], [0, 0.5, 1]])
    # Centred at its step, on the time axis of the curves.
    assert line.get_drawstyle() == "steps-mid"
    assert upper.get_xlim() == lower.get_xlim()
    assert lower.get_ylim()[0] < 0 and lower.get_ylim()[1] > 1
    (band,) = _bands(lower)
    # Of a sample of 0 and 1.
    low, high = band[1.0] if 1.0 in band else band[0.5]
    assert (low, high) == pytest.approx(
      (0.5 - math.sqrt(0.5), 0.5 + math.sqrt(0.5))
    )
    assert _legend(figure) == [
      "a",
      "ω(t)",
      "band: one standard\ndeviation over 2 seeds",
    ]

  def test_regret_has_error_bars(self):
    x = np.array([10.0, 20.0, 40.0])
    figure = dynamic_regret.lines_with_slopes(
      x, {"a": _BY_SEED}, {"b": x}, None, xlabel="", ylabel=""
    )
    (axes,) = figure.axes
    _assert_bars(_error_bars(axes)[drawing.COLORS[0].lower()], x)
    assert _legend(figure) == ["a", "b", f"bar: {_OF_SEEDS}"]
    # Powers are straight lines, and references dashed.
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    first, *_, last = axes.lines
    assert (first.get_linestyle(), last.get_linestyle()) == ("-", "--")
    np.testing.assert_array_equal(last.get_ydata(), x)
    # What explains the bars leaves the axes alone.
    low, high = axes.get_xlim()
    assert 5 < low < 10 and 40 < high < 80
    low, high = axes.get_ylim()
    # From 3 less the root of 7 to the reference's 40.
    assert 0.2 < low < 3 - math.sqrt(7) and 40 < high < 80

  def test_trade_off_has_a_band(self):
    figure = guidance_figures.trade_off([0.1, 0.3, 0.9], {"a": _BY_SEED}, None)
    (band,) = _bands(figure.axes[0])
    _assert_band(band, (0.1, 0.3, 0.9))
    assert _legend(figure) == ["a", f"band: {_OF_SEEDS}"]

  def test_periods_have_spread_of_all_that_is_shown(self):
    figure = dynamic.accuracy_over_periods(
      {"a": drawing.Curve([1, 2, 3], _BY_SEED)},
      {"a": [1.0, 2.0, 6.0]},
      _BY_SEED,
      _BY_SEED + 40,
      None,
    )
    upper, lower = figure.axes
    of_curve, of_validation = _bands(upper)
    _assert_band(of_curve, (1, 2, 3))
    # The short line at the left, whose deviation is that of the first point.
    for low, high in of_validation.values():
      assert low == pytest.approx(3 - math.sqrt(7))
      assert high == pytest.approx(3 + math.sqrt(7))
    drifted, detected = np.split(_error_bars(lower)[to_hex(drawing.GREY)], 2)
    _assert_bars(drifted, [0.75, 1.75, 2.75])
    _assert_bars(detected - [0, 40, 40], [1, 2, 3])
    heights = [bar.get_height() for bar in lower.patches]
    assert_close(heights, _MEAN)
    assert sorted(_legend(figure)) == [
      "a",
      f"band: {_OF_SEEDS}",
      f"bar: {_OF_SEEDS}",
      "drift detected",
      "drifts",
      "validation accuracy",
    ]


@pytest.mark.usefixtures("kept")
class TestLegend:
  def test_many_long_labels_make_the_figure_higher_and_no_wider(self):
    labels = [
      f"fed_evolve, learning rate {i}, optimizer adam" for i in range(24)
    ]
    figure = figures.learning_curves(
      {label: ([1, 2], [[1.0, 2.0]]) for label in labels}, None, "value"
    )
    names = _legend(figure)
    assert [" ".join(name.split()) for name in names] == labels
    assert max(len(line) for name in names for line in name.split("\n")) <= 30
    assert figure.get_figheight() > 8 == figure.get_figwidth()
    figure.draw_without_rendering()
    height = figure.legends[0].get_window_extent().height
    assert height <= figure.bbox.height

  def test_drift_has_one_entry_for_all_its_bands(self):
    figure = dynamic.distance_over_periods(
      [1.0, 9.0, 8.0], [False, True, True], 5.0, None, title=""
    )
    expected = {"DT", "distance", "drift", "drift detected"}
    assert len(_legend(figure)) == 4 and {*_legend(figure)} == expected


# Signs that mean something to matplotlib, or that no font has.
_NAMES = (
  *("$0_$25", "$25_$50", "10^$20$", "$\\frac{", "_hidden", "a\\b%{x} %s"),
  *("{}", "line\nof\x00two", "\udc80 half"),
  "x" * 300,
)
_SHOWN = (*_NAMES[:7], r"line\nof\x00two", r"\udc80 half")
_TITLE = f"$of_$ {'y' * 300}, a name and\nmore; the last is the target"
_NUMBERS = np.arange(1.0, 1 + len(_NAMES))
_CURVES = {name: ([1, 2], [[1.0, 2.0], [3.0, 4.0]]) for name in _NAMES}
_SERIES = dict.fromkeys(_NAMES, np.arange(1.0, 4.0))
_IMAGES = dict.fromkeys(_NAMES, np.zeros((2, 8, 8), np.uint8))
# What draws each figure that has names, and whether they are in its legend,
# at an axis, or elsewhere.
_DRAWINGS = {
  "learning_curves": lambda path: figures.learning_curves(
    _CURVES, path, "$y$_", _TITLE
  ),
  "accuracy_per_domain": lambda path: figures.accuracy_per_domain(
    {"a": [_NUMBERS]}, _NAMES, None, path, _TITLE
  ),
  "example_images": lambda path: figures.example_images(_IMAGES, path, _TITLE),
  "example_texts": lambda path: figures.example_texts(
    {name: ["$a$"] for name in _NAMES}, path, _TITLE
  ),
  "scatter_domains": lambda path: figures.scatter_domains(
    dict.fromkeys(_NAMES, np.zeros((1, 2))),
    {name: [0] for name in _NAMES},
    path,
    _TITLE,
  ),
  "scatter_classes": lambda path: figures.scatter_domains(
    {"a": np.zeros((len(_NAMES), 2))},
    {"a": np.arange(len(_NAMES))},
    path,
    _TITLE,
    _NAMES,
  ),
  "class_counts": lambda path: guidance_figures.class_counts(
    np.ones((2, len(_NAMES)), int), _NAMES, path, title=_TITLE
  ),
  "trade_off": lambda path: guidance_figures.trade_off(
    [0.0, 1.0], {name: [[1.0, 2.0]] for name in _NAMES}, path
  ),
  "accuracy_over_time": lambda path: online.accuracy_over_time(
    _CURVES, np.zeros((1, 3)), path, ylabel="y"
  ),
  "rates_over_time": lambda path: online.rates_over_time(
    _SERIES, _SERIES, path, title=_TITLE
  ),
  "class_distributions": lambda path: online.class_distributions(
    *[np.ones((2, len(_NAMES)))] * 2, _NAMES, path, title=_TITLE
  ),
  "shift_scatter": lambda path: online.shift_scatter(
    _SERIES, _SERIES, path, xlabel="$x$_", ylabel="y", title=_TITLE
  ),
  "lines_with_slopes": lambda path: dynamic_regret.lines_with_slopes(
    np.arange(1.0, 4.0),
    {name: [[1.0, 2.0, 3.0]] for name in _NAMES},
    _SERIES,
    path,
    xlabel="x",
    ylabel="y",
  ),
  "accuracy_over_periods": lambda path: dynamic.accuracy_over_periods(
    _CURVES,
    {name: [1.0, 2.0] for name in _NAMES},
    *[np.zeros((2, 2))] * 2,
    path,
  ),
}


class TestNames:
  @pytest.fixture
  def drawn(self, monkeypatch):
    """Returns a list that has each figure as it was when it was drawn."""
    found = []
    print_png = FigureCanvasAgg.print_png

    def keep(canvas, path):
      print_png(canvas, path)
      found.append(canvas.figure)

    monkeypatch.setattr(FigureCanvasAgg, "print_png", keep)
    return found

  @pytest.mark.slow
  @pytest.mark.parametrize("name", _DRAWINGS)
  def test_they_are_shown_as_they_are_written(self, name, drawn, tmp_path):
    path = tmp_path / "figure.png"
    _DRAWINGS[name](path)
    assert path.exists() and path.with_suffix(".pdf").exists()
    texts = [each for each in drawn[0].findobj(Text) if each.get_visible()]
    assert not any(t.get_parse_math() for t in texts if "$" in t.get_text())
    seen = {" ".join(each.get_text().split()) for each in texts}
    assert set(_SHOWN) <= seen
    (cut,) = (each for each in seen if each.startswith("xxx"))
    assert "…" in cut and len(cut.replace(" ", "")) <= 80

  @pytest.mark.filterwarnings("error")
  def test_what_the_fonts_lack_is_escaped_without_a_warning(
    self, drawn, tmp_path
  ):
    names = ["\u0939\u093f", "a \U0001f642", "\u00e9\u03c9"]
    figures.learning_curves(
      {name: ([1, 2], [[1.0, 2.0]]) for name in names},
      tmp_path / "figure.png",
      "value",
      names[0],
    )
    # Greek and Latin are in the font that comes with matplotlib.
    told = [r"\u0939\u093f", r"a \U0001f642", "\u00e9\u03c9"]
    assert _legend(drawn[0]) == told
    assert told[0] in {each.get_text() for each in drawn[0].findobj(Text)}

  @pytest.mark.slow
  @pytest.mark.parametrize(
    "name",
    [
      *("learning_curves", "accuracy_per_domain", "example_images"),
      *("example_texts", "scatter_classes", "class_counts", "rates_over_time"),
      *("class_distributions", "shift_scatter"),
    ],
  )
  def test_titles_fit(self, name, drawn, tmp_path, monkeypatch):
    long = "Examples of each domain of " + "of_a_set_of_data " * 5
    monkeypatch.setitem(globals(), "_TITLE", long)
    # What is drawn after the picture has another resolution.
    monkeypatch.setattr(FigureCanvasPdf, "print_pdf", lambda *_, **__: None)
    _DRAWINGS[name](tmp_path / "figure.png")
    (figure,) = drawn
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    (title,) = (
      each
      for each in figure.findobj(Text)
      if each.get_text().startswith("Examples of each")
    )
    assert " ".join(title.get_text().split()) == long.strip()
    box = title.get_window_extent()
    right = min(
      [each.get_window_extent().x0 for each in figure.legends],
      default=figure.bbox.x1,
    )
    assert figure.bbox.x0 <= box.x0 < box.x1 <= right
    assert figure.bbox.y0 < box.y0 < box.y1 <= figure.bbox.y1

  @pytest.mark.usefixtures("kept")
  def test_of_very_many_the_first_are_told(self):
    figure = figures.learning_curves(
      {f"c{i}": ([1, 2], [[1.0, 2.0]] * 2) for i in range(150)}, None, "y"
    )
    names = _legend(figure)
    assert len(names) == 101 and names[:99] == [f"c{i}" for i in range(99)]
    # One of the 151 entries tells of the spread.
    assert names[99] == "and 51 more"
    assert names[100].startswith("band:")
    assert figure.get_figheight() < 30


class TestStyles:
  def test_lines_are_told_apart_without_their_color(self):
    styles = [drawing.line_style(index) for index in range(16)]
    assert len({(s["marker"], s["linestyle"]) for s in styles}) == 16
    assert len({each["color"] for each in styles[:8]}) == 8
    # Neighbours in a legend differ in all three.
    for one, other in itertools.pairwise(styles):
      for name in ("marker", "linestyle", "color"):
        assert one[name] != other[name]

  # Machado, Oliveira, Fernandes (2009), severity 1: red, green, blue.
  @pytest.mark.parametrize(
    "matrix",
    [
      """0.152286 1.052583 -0.204868
      0.114503 0.786281 0.099216
      -0.003882 -0.048116 1.051998""",
      """0.367322 0.860646 -0.227968
      0.280085 0.672501 0.047413
      -0.011820 0.042940 0.968881""",
      """1.255528 -0.076749 -0.178779
      -0.078411 0.930809 0.147602
      0.004733 0.691367 0.303900""",
    ],
    ids=["protanopia", "deuteranopia", "tritanopia"],
  )
  def test_colors_differ_for_colour_blind_readers(self, matrix):
    deficiency = np.loadtxt(matrix.splitlines())
    seen = [_lab(deficiency @ _linear(color)) for color in drawing.COLORS]
    # In CIELAB, where 2.3 can just be seen side by side.
    assert (
      min(
        np.linalg.norm(one - other)
        for one, other in itertools.combinations(seen, 2)
      )
      > 15
    )


def _linear(color):
  """Returns linear red, green and blue of an sRGB colour."""
  value = np.array(to_rgb(color))
  return np.where(
    value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4
  )


def _lab(linear):
  """Returns CIELAB coordinates, for the white of D65."""
  to_xyz = [
    [0.4124564, 0.3575761, 0.1804375],
    [0.2126729, 0.7151522, 0.0721750],
    [0.0193339, 0.1191920, 0.9503041],
  ]
  xyz = to_xyz @ np.clip(linear, 0, 1) / [0.95047, 1.0, 1.08883]
  x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
  return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


class TestFiles:
  def _draw(self, path):
    return figures.accuracy_per_domain(
      {"a": _BY_SEED, "b": _BY_SEED + 1}, ["x", "y", "z"], 2, path
    )

  def test_pdf_lies_beside_the_png_and_is_the_same_each_time(
    self, tmp_path, monkeypatch
  ):
    # The name of the distribution of a stream has a dot.
    first = self._draw(tmp_path / "accuracy_0.9.png")
    assert first == tmp_path / "accuracy_0.9.png"
    # What matplotlib takes for the time, were it asked.
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    self._draw(tmp_path / "again.png")
    assert {each.name for each in tmp_path.iterdir()} == {
      f"{name}.{kind}"
      for name in ("accuracy_0.9", "again")
      for kind in ("png", "pdf")
    }
    content = (tmp_path / "accuracy_0.9.pdf").read_bytes()
    assert content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")
    assert b"CreationDate" not in content
    # It is made of lines, not of pixels.
    assert b"/Subtype /Image" not in content
    assert content == (tmp_path / "again.pdf").read_bytes()
    assert first.read_bytes() == (tmp_path / "again.png").read_bytes()

  @pytest.mark.slow
  def test_figures_are_whole_or_as_before(self, tmp_path, no_file_above):
    self._draw(tmp_path / "a.png")
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    size = (tmp_path / "a.pdf").stat().st_size
    assert size < (tmp_path / "a.png").stat().st_size
    for limit, name in ((size - 1, "b.png"), (1000, "a.png")):
      with (
        no_file_above(limit),
        pytest.raises(files.WriteError, match=rf"{name} cannot .*too large"),
      ):
        self._draw(tmp_path / name)
    assert before == {each: each.read_bytes() for each in tmp_path.iterdir()}


@pytest.mark.slow
def test_figures_leave_the_host_application_alone(tmp_path):
  program = """
import pathlib
import sys
import matplotlib
import numpy as np
matplotlib.use("svg")
matplotlib.rcParams["savefig.bbox"] = "tight"
before = dict(matplotlib.rcParams)
from tff_shift.scenarios.dynamic_personalization import figures as dynamic
from tff_shift.reporting.figures import evaluation_figures
from tff_shift.reporting.figures import figures
from tff_shift.scenarios.guidance import figures as guidance_figures
from tff_shift.scenarios.online_adaptation import figures as online
folder = pathlib.Path(sys.argv[1])
figures.learning_curves({"a": ([1], [[1.0]])}, folder / "a.png", "value")
guidance_figures.trade_off([0.5], {"a": [[1.0]]}, folder / "b.png")
online.accuracy_over_time(
    {"a": ([1], [[2.0]])}, [[0.0, 1.0]], folder / "c.png", ylabel="y"
)
dynamic.distance_over_periods(
    [1.0], [True], 0.5, folder / "d.png", title="a"
)
# Notebooks display figures as pictures.
shown = evaluation_figures.drift_timeline({"a": [1.0, 2.0]}, [2])
image, metadata = shown._repr_png_()
assert image.startswith(b"\\x89PNG") and metadata["alt"]
assert image == shown._repr_png_()[0]
assert dict(matplotlib.rcParams) == before
for module in ("matplotlib.pyplot", "tensorflow", "tensorflow_federated"):
  assert module not in sys.modules, module
"""
  subprocess.run(
    [sys.executable, "-W", "error", "-c", program, tmp_path], check=True
  )
  for name, height in zip("abcd", (540, 540, 660, 540), strict=True):
    with Image.open(tmp_path / f"{name}.png") as image:
      assert image.size == (960, height)
