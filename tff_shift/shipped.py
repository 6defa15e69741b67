"""Where the files are that come with the programs."""

import pathlib

_PACKAGE = pathlib.Path(__file__).parent


def folder(name: str) -> pathlib.Path:
  """Returns a folder of `experiments`, such as that of the presets.

  An installed package has it inside; a checkout beside the package.
  """
  inside = _PACKAGE / name
  return inside if inside.is_dir() else _PACKAGE.parent / "experiments" / name
