"""Locates files that are shipped with the binaries."""

import pathlib

_PACKAGE = pathlib.Path(__file__).parent


def folder(name: str) -> pathlib.Path:
  """Returns a folder of `experiments`, for example "presets".

  In an installed package it is inside the package, in a checkout next to it.
  """
  inside = _PACKAGE / name
  return inside if inside.is_dir() else _PACKAGE.parent / "experiments" / name
