"""Names and messages as pages, figures and terminals show them.

Names of data, classes, clients and files come from outside, as do messages of
libraries: a control character in one of them must not move the cursor of a
terminal, erase a line or turn the order of what stands beside it.
"""

import hashlib
import re
import unicodedata

# Control characters, halves of pairs, and ends of lines and paragraphs.
_UNSEEN = ("Cc", "Cs", "Zl", "Zp")
# What changes the direction of the text behind it, joins nothing, or is to be
# seen by nobody. Joiners and direction marks belong to words of some scripts.
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
# A file system takes names of 255 bytes, some of which are an ending.
_LONGEST_FILE_NAME = 200


def is_encodable(text: str) -> bool:
  """Tells whether a file can hold a text: no half of a surrogate pair is in it.

  Python makes these of names of files that are not UTF-8.
  """
  return not re.search("[\ud800-\udfff]", text)


def printable(name: str) -> str:
  r"""Returns a name with escapes, as of `\n`, for what no font can show."""
  return "".join(
    character.encode("unicode_escape").decode()
    if unicodedata.category(character) in _UNSEEN or character in _FORMATS
    else character
    for character in name
  )


def line(text: object) -> str:
  """Returns what a terminal shows in one line.

  Args:
    text: A message, or whatever else `str` takes; its lines become one.
  """
  return printable(" ".join(str(text).split()))


def lines(text: str) -> str:
  r"""Returns what a terminal shows in the lines that `\n` divides."""
  return "\n".join(map(printable, text.split("\n")))


def file_name(text: str) -> str:
  """Returns a name of a file or folder, without an ending, for a text.

  Args:
    text: Names and numbers; what does not suit a file's name becomes `_`.

  Returns:
    A name of at most 200 bytes. Of a longer one the end is replaced by a digest
    of the text.
  """
  name = re.sub(r"[^\w.+-]+", "_", text)
  encoded = name.encode()
  if len(encoded) <= _LONGEST_FILE_NAME:
    return name
  digest = hashlib.sha256(encoded).hexdigest()[:16]
  begin = encoded[: _LONGEST_FILE_NAME - len(digest) - 1]
  return f"{begin.decode(errors='ignore')}-{digest}"


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
