"""Draws the four pictures of the scenarios in the README.

    python docs/images/draw_scenarios.py

The digits are scikit-learn's, with the rotations and colour changes of the data
sets. Label distributions are schematic.
"""

import pathlib

import numpy as np
from matplotlib.figure import Figure

from tff_shift.data import datasets
from tff_shift.data.images import color_transforms
from tff_shift.data.images import transforms

_FOLDER = pathlib.Path(__file__).parent
_SIZE = (4.2, 1.9)
_COLORS = ("#0072B2", "#D55E00", "#009E73")
_GREY = "0.35"
# A readable example of a class in scikit-learn's digits.
_EXAMPLE = 4


def _digit(class_number: int, degrees: float = 0) -> np.ndarray:
  """Returns an image `[28, 28]` in [0, 1]."""
  digits = datasets.load("digits")
  position = np.flatnonzero(digits.y == class_number)[_EXAMPLE]
  image = transforms.rotate(digits.x[position][np.newaxis], degrees)
  return image[0, :, :, 0] / 255


def _canvas() -> Figure:
  return Figure(figsize=_SIZE, layout="constrained")


def _show(axes, image, edge=_GREY, width=1.0) -> None:
  axes.imshow(image, cmap="gray_r", vmin=0, vmax=1)
  axes.set_xticks([])
  axes.set_yticks([])
  for spine in axes.spines.values():
    spine.set_color(edge)
    spine.set_linewidth(width)


def _save(figure: Figure, name: str) -> None:
  figure.savefig(_FOLDER / f"{name}.png", dpi=120)


def evolving() -> None:
  """Draws domains that rotate, of which the last one is unseen."""
  figure = _canvas()
  columns = 5
  for client, (row, digit) in enumerate(
    zip(figure.subplots(2, columns), (3, 7), strict=True)
  ):
    for number, axes in enumerate(row):
      is_last = number == columns - 1
      _show(
        axes,
        _digit(digit, (15 + 10 * client) * number),
        *((_COLORS[1], 2.5) if is_last else ()),
      )
      if client == 0:
        axes.set_title("unseen" if is_last else f"time {number + 1}", size=9)
    row[0].set_ylabel(f"client {client + 1}", size=9)
  _save(figure, "evolving")


def online_adaptation() -> None:
  """Draws a label distribution that drifts after deployment."""
  figure = _canvas()
  axes = figure.add_subplot()
  time = np.arange(17)
  weight = np.clip((time - 4) / 12, 0, 1)
  starts, ends = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.2, 0.7])
  fractions = np.outer(1 - weight, starts) + np.outer(weight, ends)
  axes.stackplot(time, fractions.T, colors=_COLORS, alpha=0.75)
  for class_number, height in enumerate(np.cumsum(starts) - starts / 2):
    axes.text(0.4, height, f"class {class_number}", size=8, va="center")
  axes.axvline(4, color="black", linestyle="--", linewidth=1)
  axes.text(2, 1.04, "labelled", size=9, ha="center")
  axes.text(10, 1.04, "deployed: no labels", size=9, ha="center")
  axes.set_xlim(0, 16)
  axes.set_ylim(0, 1)
  axes.set_xticks([])
  axes.set_yticks([])
  axes.set_xlabel("time", size=9)
  axes.set_ylabel("fraction", size=9)
  _save(figure, "online_adaptation")


def guidance() -> None:
  """Draws clients with other colours, and a query that goes to one of them."""
  figure = _canvas()
  axes = figure.add_subplot()
  axes.set_xlim(0, 10)
  axes.set_ylim(0, 4.5)
  axes.set_aspect("equal")
  axes.axis("off")
  transforms_of = [color_transforms.pool(8, "high")[each] for each in (1, 6, 4)]
  images = np.stack([_digit(each) for each in (3, 7)])[..., np.newaxis]
  images = color_transforms.tint((images * 255).astype(np.uint8))
  for client, transform in enumerate(transforms_of):
    changed = color_transforms.apply(images, transform)
    bottom = 3 - 1.5 * client
    for column, image in enumerate(changed):
      left = 6.2 + 1.45 * column
      axes.imshow(image, extent=(left, left + 1.35, bottom, bottom + 1.35))
    axes.text(9.2, bottom + 0.6, f"client {client + 1}", size=8, va="center")
  query = color_transforms.apply(images, transforms_of[1])[0]
  axes.imshow(query, extent=(0.2, 1.55, 1.5, 2.85))
  axes.text(0.85, 3.1, "query", size=9, ha="center")
  axes.text(3.8, 2.5, "guide", size=9, ha="center")
  axes.annotate(
    "",
    xy=(6.0, 2.2),
    xytext=(1.8, 2.2),
    arrowprops={"arrowstyle": "->", "color": _COLORS[1], "linewidth": 2},
  )
  axes.set_xlim(0, 11)
  axes.set_ylim(0, 4.5)
  _save(figure, "guidance")


def dynamic_personalization() -> None:
  """Draws label distributions by period; a drift brings new weights."""
  figure = _canvas()
  periods = np.array(
    [[0.7, 0.2, 0.1], [0.68, 0.2, 0.12], [0.1, 0.25, 0.65], [0.12, 0.22, 0.66]]
  )
  for number, axes in enumerate(figure.subplots(1, len(periods), sharey=True)):
    axes.bar(range(3), periods[number], color=_COLORS)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_ylim(0, 0.8)
    axes.set_xlabel(f"period {number + 1}", size=9)
    axes.spines[["top", "right"]].set_visible(False)
    is_drift = number == 2
    axes.set_title(
      "drift:\nnew weights" if is_drift else "\n",
      size=9,
      color=_COLORS[1] if is_drift else "black",
    )
  _save(figure, "dynamic_personalization")


if __name__ == "__main__":
  evolving()
  online_adaptation()
  guidance()
  dynamic_personalization()
