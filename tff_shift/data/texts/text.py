"""Titles as word ids: tokenization into words, and vocabularies.

A word is a run of letters and digits of any alphabet, with their marks
(accents, vowel signs of Hindi and Thai, points of Hebrew) and with apostrophes
and joiners inside, in lower case; a typographic apostrophe is replaced by the
typewriter's. Canonically equivalent spellings in Unicode, such as é as one
character or as e and an accent, are the same word (normal form NFC). Scripts
without spaces between words are not split into words. A title is a row of the
ids of its first words, padded on the right with `PADDING`.

A model's vocabulary consists of the most frequent words of the examples that
train it: words of the target, of test examples and of new clients alone are
unseen in training. All other words are `UNKNOWN`.

Choices:
  * NFKC would also join full-width letters with others, and split Thai and Lao
    characters in two, an unused spelling.
  * A vocabulary has the 20,000 most frequent words of the drawn titles of the
    source domains; ties are in alphabetical order. It is the same for all
    clients and is counted before training, in plaintext. `--select=last_source`
    holds out a domain whose words have been counted.
  * A title has its first 30 words.
"""

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable
from collections.abc import Sequence

import numpy as np

PADDING, UNKNOWN = 0, 1
# The first ids. No real word is written like this.
RESERVED = ("<padding>", "<unknown>")

_LETTERS = r"[^\W_]"
# Searching texts without marks is ten times as fast.
_ASCII_WORD = re.compile(f"{_LETTERS}+(?:'{_LETTERS}+)*")
# In Persian or Sinhala words these characters control how letters are joined.
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"


@functools.cache
def _word() -> re.Pattern[str]:
  """Returns the pattern of a word; `re` has no Unicode classes."""
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
  # Capitals and their lower-case letters may have different normal forms.
  title = unicodedata.normalize("NFC", title).lower()
  return _word().findall(
    unicodedata.normalize("NFC", title).replace(
      "\N{RIGHT SINGLE QUOTATION MARK}", "'"
    )
  )


def ids_of(
  titles: Sequence[Sequence[str]], vocabulary: Sequence[str], length: int
) -> np.ndarray:
  """Converts the words of titles to ids.

  Args:
    titles: The words of each title.
    vocabulary: The word of each id, `RESERVED` first.
    length: The number of ids of a title; further words are dropped.

  Returns:
    `[len(titles), length]` int32.
  """
  id_of = {word: index for index, word in enumerate(vocabulary)}
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
  """Numbers the words in titles, in alphabetical order.

  Args:
    titles: The words of each title.
    length: The number of ids of a title; further words are dropped and get no
      number.

  Returns:
    The ids, and the word of each id.
  """
  occurring = {word for words in titles for word in words[:length]}
  vocabulary = (*RESERVED, *sorted(occurring))
  return ids_of(titles, vocabulary, length), vocabulary


def keep_frequent(
  x: Sequence[np.ndarray],
  vocabulary: Sequence[str],
  size: int,
  counted: Iterable[np.ndarray],
) -> tuple[list[np.ndarray], tuple[str, ...]]:
  """Keeps the words that are most frequent in some examples.

  Args:
    x: The ids of each domain, in order, each `[n, length]` int32.
    vocabulary: The word of each id, `RESERVED` first.
    size: The maximum number of ids, including the reserved ones.
    counted: The ids of the examples whose words count, arrays [n, length].

  Returns:
    New ids of each domain, sorted by descending frequency after the reserved
    ones, and alphabetically for equal frequencies; and the word of each id.
  """
  counts = np.zeros(len(vocabulary), np.int64)
  for titles in counted:
    counts += np.bincount(titles.ravel(), minlength=len(vocabulary))
  counts[: len(RESERVED)] = 0
  frequent = sorted(
    np.flatnonzero(counts), key=lambda word: (-counts[word], vocabulary[word])
  )[: size - len(RESERVED)]
  new_id = np.full(len(vocabulary), UNKNOWN, np.int32)
  new_id[PADDING] = PADDING
  new_id[frequent] = len(RESERVED) + np.arange(len(frequent))
  known = (*RESERVED, *(vocabulary[word] for word in frequent))
  return [new_id[ids] for ids in x], known


def check_ids(x: np.ndarray, size: int, what: str) -> None:
  """Refuses ids that are not in a vocabulary.

  Args:
    x: Integers.
    size: The size of the vocabulary.
    what: The name of the examples in the message.

  Raises:
    ValueError: If there is such an id.
  """
  if x.size and (x.min() < 0 or x.max() >= size):
    raise ValueError(
      f"x of {what}: ids of words must lie in 0..{size - 1}, got"
      f" {x.min()}..{x.max()}"
    )
