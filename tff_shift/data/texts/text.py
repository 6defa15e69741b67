"""Titles as numbers of words: what a word is, and which words are known.

A word is a run of letters and digits of any alphabet, each with the marks that
belong to it (accents, vowel signs of Hindi and Thai, points of Hebrew), with
apostrophes and joiners inside it, in lower case; a typewriter's apostrophe
stands for the typographic one. Spellings that Unicode calls canonically
equivalent, such as é as one character or as e and an accent, are one word
(normal form NFC). Scripts without spaces between words are not cut into words.
A title is a row of ids of its first words, filled up on the right with
`PADDING`.

A model knows the words that are most frequent in the source domains, and no
others: those of the target have not been seen when it is trained. All others
are one word, `UNKNOWN`.
"""

import functools
import re
import sys
import unicodedata
from collections.abc import Sequence

import numpy as np

PADDING, UNKNOWN = 0, 1
# What the first ids stand for. No word is written like this.
RESERVED = ("<padding>", "<unknown>")

_LETTERS = r"[^\W_]"
# Texts without marks are searched ten times as fast.
_ASCII_WORD = re.compile(f"{_LETTERS}+(?:'{_LETTERS}+)*")
# Inside a Persian or Sinhala word they say how its letters are joined.
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"


@functools.cache
def _word() -> re.Pattern[str]:
  """Returns the pattern of a word; `re` knows no classes of Unicode."""
  marks = "".join(
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if unicodedata.category(character).startswith("M")
  )
  mark = rf"(?:[{marks}]|[{_JOINERS}](?={_LETTERS}))"
  run = f"{_LETTERS}+(?:{mark}+{_LETTERS}*)*"
  return re.compile(f"{run}(?:'{run})*")


def words_of(title: str) -> list[str]:
  """Returns the words of a title, in order."""
  if title.isascii():
    return _ASCII_WORD.findall(title.lower())
  # Capitals and their small letters may have different normal forms.
  title = unicodedata.normalize("NFC", title).lower()
  return _word().findall(
    unicodedata.normalize("NFC", title).replace(
      "\N{RIGHT SINGLE QUOTATION MARK}", "'"
    )
  )


def ids_of(
  titles: Sequence[Sequence[str]], vocabulary: Sequence[str], length: int
) -> np.ndarray:
  """Turns the words of titles into ids.

  Args:
    titles: The words of each title.
    vocabulary: The word of each id, `RESERVED` first.
    length: The number of ids of a title; further words are left out.

  Returns:
    `[len(titles), length]` int32.
  """
  id_of = {word: number for number, word in enumerate(vocabulary)}
  for reserved in RESERVED:
    del id_of[reserved]
  x = np.full((len(titles), length), PADDING, np.int32)
  for row, words in zip(x, titles, strict=True):
    ids = [id_of.get(word, UNKNOWN) for word in words[:length]]
    row[: len(ids)] = ids
  return x


def number(
  titles: Sequence[Sequence[str]], length: int
) -> tuple[np.ndarray, tuple[str, ...]]:
  """Numbers the words that occur in titles, in alphabetical order.

  Args:
    titles: The words of each title.
    length: See `ids_of`. Words that are left out are not numbered.

  Returns:
    The ids, and the word of each id.
  """
  occurring = {word for words in titles for word in words[:length]}
  vocabulary = (*RESERVED, *sorted(occurring))
  return ids_of(titles, vocabulary, length), vocabulary


def keep_frequent(
  x: Sequence[np.ndarray], vocabulary: Sequence[str], size: int
) -> tuple[list[np.ndarray], tuple[str, ...]]:
  """Leaves the most frequent words of all domains but the last.

  Args:
    x: The ids of each domain, in order, each `[n, length]` int32.
    vocabulary: The word of each id, `RESERVED` first.
    size: The largest number of ids that are left, the reserved ones included.

  Returns:
    New ids of each domain, in which the most frequent word is the first after
    the reserved ones, and of words that are equally frequent the one that comes
    first in the alphabet; and the word of each id.
  """
  counts = sum(
    np.bincount(each.ravel(), minlength=len(vocabulary)) for each in x[:-1]
  )
  counts[: len(RESERVED)] = 0
  kept = sorted(
    np.flatnonzero(counts), key=lambda each: (-counts[each], vocabulary[each])
  )[: size - len(RESERVED)]
  new_id = np.full(len(vocabulary), UNKNOWN, np.int32)
  new_id[PADDING] = PADDING
  new_id[kept] = len(RESERVED) + np.arange(len(kept))
  known = (*RESERVED, *(vocabulary[each] for each in kept))
  return [new_id[each] for each in x], known


def check_ids(x: np.ndarray, size: int, what: str) -> None:
  """Refuses numbers that are ids of no words.

  Args:
    x: Integers.
    size: Ids are from 0 to it, less one.
    what: What the message calls the examples.

  Raises:
    ValueError: There is such a number.
  """
  if x.size and (x.min() < 0 or x.max() >= size):
    raise ValueError(
      f"x of {what}: ids of words must lie in 0..{size - 1}, got"
      f" {x.min()}..{x.max()}"
    )
