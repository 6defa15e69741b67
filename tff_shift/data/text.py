"""Titles as numbers of words: what a word is, and which words are known.

A word is a run of letters and digits of any alphabet, with apostrophes inside
it, in lower case; a typewriter's apostrophe stands for the typographic one. A
title is a row of ids of its first words, filled up on the right with `PADDING`.

A model knows the words that are most frequent in the source domains, and no
others: those of the target have not been seen when it is trained. All others
are one word, `UNKNOWN`.
"""

import re
from collections.abc import Sequence

import numpy as np

PADDING, UNKNOWN = 0, 1
# What the first ids stand for. No word is written like this.
RESERVED = ("<padding>", "<unknown>")

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words_of(title: str) -> list[str]:
  """Returns the words of a title, in order."""
  return _WORD.findall(
    title.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
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
