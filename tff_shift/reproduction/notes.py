"""What BUILD_NOTES.md says below its headings, if it is there.

A package that was installed from a wheel does not have it.
"""

import functools
import pathlib
import re
from collections.abc import Mapping

from tff_shift import files

PATH = pathlib.Path(__file__).parents[2] / "BUILD_NOTES.md"


@functools.cache
def _texts() -> Mapping[str, str]:
  parts = re.split(r"^## ", files.read_text(PATH), flags=re.M)
  texts = (part.partition("\n") for part in parts)
  return {heading: text.strip() for heading, _, text in texts}


def has(heading: str) -> bool:
  """Whether there may be a heading: whether it is there, if the file is."""
  return not PATH.is_file() or heading in _texts()


def on(heading: str) -> str:
  """Returns what stands below a heading; empty if the file is not there."""
  return _texts()[heading] if PATH.is_file() else ""
