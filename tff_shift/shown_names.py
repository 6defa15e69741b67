"""Names of the user's as pages and figures show them: as they are written."""

import unicodedata

# Control characters, halves of pairs, and ends of lines and paragraphs.
_UNSEEN = ("Cc", "Cs", "Zl", "Zp")


def printable(name: str) -> str:
  r"""Returns a name with escapes, as of `\n`, for what no font can show."""
  return "".join(
    character.encode("unicode_escape").decode()
    if unicodedata.category(character) in _UNSEEN
    else character
    for character in name
  )


def shortened(name: str, length: int) -> str:
  """Returns a name of at most so many characters, at least 3.

  Args:
    name: The name.
    length: The number of characters.

  Returns:
    The name; of a longer one the begin and the end, for either may be what
    tells it from others.
  """
  if len(name) <= length:
    return name
  end = (length - 1) // 3
  return f"{name[: length - 1 - end]}…{name[len(name) - end :]}"
