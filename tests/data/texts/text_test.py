"""Words and their numbers, on titles that can be counted by hand."""

import re
import unicodedata

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_shift.data.texts import text


@pytest.mark.parametrize(
  "title, words",
  [
    ("What's NEW?  (2018)", ["what's", "new", "2018"]),
    (
      "Don\N{RIGHT SINGLE QUOTATION MARK}t -- 'quote' snake_case",
      ["don't", "quote", "snake", "case"],
    ),
    ("Élan vital: 東京 3,000", ["élan", "vital", "東京", "3", "000"]),
    (" ... !? _ ", []),
  ],
)
def test_words_are_runs_of_letters_and_digits(title, words):
  assert text.words_of(title) == words


# Two parts of a word, not joined.
PERSIAN = "\u0645\u06cc\u200c\u062e\u0648"


@pytest.mark.parametrize(
  "title, words",
  [
    # Vowel signs and viramas, of both kinds of marks.
    ("हिन्दी में समाचार", ["हिन्दी", "में", "समाचार"]),
    ("ไทยแลนด์ น้ำ", ["ไทยแลนด์", "น้ำ"]),
    ("שָׁלוֹם עולם", ["שָׁלוֹם", "עולם"]),
    ("مَرْحَبًا", ["مَرْحَبًا"]),
    # A joiner is part of a word, and does not end or begin one.
    (f"{PERSIAN}\u200c \u200dx", [PERSIAN, "x"]),
    # A mark without a letter is no word.
    ("\u0301 \u2764\ufe0f a", ["a"]),
    # The small letter of a capital that has one more mark.
    ("İSTANBUL", ["i\u0307stanbul"]),
  ],
)
def test_marks_belong_to_their_letters(title, words):
  # Some of these letters have marks that NFC puts in another order.
  assert text.words_of(title) == [
    unicodedata.normalize("NFC", w) for w in words
  ]


@hypothesis.given(
  st.text(st.characters(codec="utf-8", min_codepoint=0xA0), max_size=20)
)
def test_spellings_that_are_equivalent_are_one(title):
  composed, decomposed = (
    text.words_of(unicodedata.normalize(form, title)) for form in ("NFC", "NFD")
  )
  assert composed == decomposed
  for word in composed:
    assert unicodedata.is_normalized("NFC", word)
    # A word is its own only word, so that a vocabulary finds it again.
    assert text.words_of(word) == [word]


@hypothesis.given(st.text(st.characters(max_codepoint=0x17F), max_size=30))
def test_words_without_marks_are_as_before(title):
  title = unicodedata.normalize("NFC", title.replace("İ", ""))
  expected = re.findall(r"[^\W_]+(?:'[^\W_]+)*", title.lower())
  assert text.words_of(title) == expected


def test_titles_are_numbered_in_alphabetical_order_and_filled_up():
  x, vocabulary = text.number([["b", "a", "b", "z"], [], ["c"]], length=3)
  # The fourth word of the first title is cut off, and so it has no number.
  assert vocabulary == ("<padding>", "<unknown>", "a", "b", "c")
  assert x.dtype == np.int32
  assert x.tolist() == [[3, 2, 3], [0, 0, 0], [4, 0, 0]]


def test_unknown_and_reserved_words_are_unknown():
  vocabulary = ("<padding>", "<unknown>", "a")
  titles = [["a", "new", "<padding>"]]
  assert text.ids_of(titles, vocabulary, 4).tolist() == [[2, 1, 1, 0]]


class TestKeepFrequent:
  VOCABULARY = (*text.RESERVED, "a", "b", "c", "d", "e")
  # a once, b and c twice each in the source domains; d in the target alone;
  # e nowhere, and unknown words do not count.
  DOMAINS = (
    np.int32([[4, 4, 0], [3, 1, 1]]),
    np.int32([[3, 2, 1]]),
    np.int32([[5, 5, 5], [2, 4, 0]]),
  )

  def test_order_is_by_frequency_and_then_by_alphabet(self):
    x, vocabulary = text.keep_frequent(
      self.DOMAINS, self.VOCABULARY, 100, self.DOMAINS[:2]
    )
    assert vocabulary == (*text.RESERVED, "b", "c", "a")
    assert [each.tolist() for each in x] == [
      [[3, 3, 0], [2, 1, 1]],
      [[2, 4, 1]],
      [[1, 1, 1], [4, 3, 0]],
    ]

  def test_rarest_words_are_left_out_first(self):
    x, vocabulary = text.keep_frequent(
      self.DOMAINS, self.VOCABULARY, 3, self.DOMAINS[:2]
    )
    assert vocabulary == (*text.RESERVED, "b")
    assert x[0].tolist() == [[1, 1, 0], [2, 1, 1]]
