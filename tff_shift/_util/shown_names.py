"""Formats names and messages for pages, figures and terminals.

Names of data, classes, clients and files, and messages of libraries, come from
outside. Control characters in them must not move the cursor of a terminal,
erase a line or reverse the order of other text.

Choices:
  * Unpaired surrogates are refused on entry (flags, names of classes and
    clients): no file of a run could contain them, which would only show at its
    end.
  * Output on a terminal is escaped when it is printed, including characters
    that change the direction of text; names in result files are unchanged.
"""

import hashlib
import re
import unicodedata

# Control characters, surrogates, and line and paragraph separators.
_UNSEEN = ("Cc", "Cs", "Zl", "Zp")
# Characters that change the direction of following text or are invisible.
# Joiners and direction marks are allowed: some scripts need them in words.
_FORMATS = frozenset(
  map(
    chr,
    (
      *range(0x202A, 0x202F),
      *range(0x2066, 0x2070),
      *range(0xFFF9, 0xFFFC),
      0xFEFF,
    ),
  )
)
# File systems allow 255 bytes, including the suffix.
_LONGEST_FILE_NAME = 200


def is_encodable(text: str) -> bool:
  """Returns whether a text can be encoded as UTF-8: it has no surrogates.

  Python represents file names that are not UTF-8 with surrogates.
  """
  return not re.search("[\ud800-\udfff]", text)


def printable(name: str) -> str:
  r"""Escapes characters of a name that are not printable, such as `\n`."""
  return "".join(
    character.encode("unicode_escape").decode()
    if unicodedata.category(character) in _UNSEEN or character in _FORMATS
    else character
    for character in name
  )


def line(text: object) -> str:
  """Formats a text for a terminal, in one line.

  Args:
    text: A message, or any argument of `str`. Its lines are joined.
  """
  return printable(" ".join(str(text).split()))


def lines(text: str) -> str:
  r"""Formats a text for a terminal, in the lines that `\n` separates."""
  return "\n".join(map(printable, text.split("\n")))


def file_name(text: str) -> str:
  """Returns the name of a file or folder, without suffix, for a text.

  Args:
    text: Names and numbers. Characters that file names should not have become
      `_`.

  Returns:
    A name of at most 200 bytes. The end of a longer name is replaced by a
    digest of the text.
  """
  name = re.sub(r"[^\w.+-]+", "_", text)
  encoded = name.encode()
  if len(encoded) <= _LONGEST_FILE_NAME:
    return name
  digest = hashlib.sha256(encoded).hexdigest()[:16]
  begin = encoded[: _LONGEST_FILE_NAME - len(digest) - 1]
  return f"{begin.decode(errors='ignore')}-{digest}"


def shortened(name: str, length: int) -> str:
  """Shortens a name to a maximum length.

  Args:
    name: The name.
    length: The maximum number of characters, at least 3.

  Returns:
    The name, or the beginning and end of a longer name, because either may
    distinguish it from others.
  """
  if len(name) <= length:
    return name
  end = (length - 1) // 3
  return f"{name[: length - 1 - end]}…{name[len(name) - end :]}"
