"""Reads sections of BUILD_NOTES.md."""

import functools
import pathlib
import re
from collections.abc import Mapping

from tff_shift._util import files

PATH = pathlib.Path(__file__).parents[2] / "BUILD_NOTES.md"


@functools.cache
def _texts() -> Mapping[str, str]:
  parts = re.split(r"^## ", files.read_text(PATH), flags=re.M)
  texts = (part.partition("\n") for part in parts)
  return {heading: text.strip() for heading, _, text in texts}


def has(heading: str) -> bool:
  """Returns whether the file has a heading."""
  return heading in _texts()


def on(heading: str) -> str:
  """Returns the text below a heading."""
  return _texts()[heading]
