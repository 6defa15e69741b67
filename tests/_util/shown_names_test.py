"""Tests of names as pages, figures, terminals and files have them."""

import unicodedata

import hypothesis
import pytest
from hypothesis import strategies as st

from tff_shift._util import shown_names


@pytest.mark.parametrize(
  "name, shown",
  [
    ("$a_b^{c} 100 %", "$a_b^{c} 100 %"),
    ("two\nlines\tand\x00\x7f", r"two\nlines\tand\x00\x7f"),
    ("\u2028\ud800", r"\u2028\ud800"),
    # What turns the order of what stands beside it.
    ("a\u202eb\u2066c\ufeff", r"a\u202eb\u2066c\ufeff"),
    ("\x9b31m\x1b]0;x\x07", r"\x9b31m\x1b]0;x\x07"),
    ("हिन्दी café\N{NO-BREAK SPACE}1", "हिन्दी café\N{NO-BREAK SPACE}1"),
  ],
)
def test_only_what_no_font_shows_is_escaped(name, shown):
  assert shown_names.printable(name) == shown


@hypothesis.given(st.text(max_size=40), st.integers(3, 30))
@pytest.mark.slow
def test_long_names_keep_begin_and_end(name, length):
  shown = shown_names.shortened(name, length)
  assert len(shown) == min(len(name), length)
  begin, cut, end = shown.partition("…")
  if len(name) > length:
    assert cut and name.startswith(begin) and name.endswith(end)
  else:
    assert shown == name


@hypothesis.given(st.text(max_size=60))
def test_no_text_moves_a_cursor(text):
  shown = shown_names.printable(text)
  assert len(f"{shown}.".splitlines()) == 1
  assert shown.encode("utf-8").decode() == shown
  parts = shown_names.lines(text).split("\n")
  assert len(parts) == 1 + text.count("\n")
  for shown in (shown_names.line(text), *parts):
    categories = {unicodedata.category(each) for each in shown}
    assert not categories & {"Cc", "Cs", "Zl", "Zp"}
    assert not {"\u202e", "\u2066"} & set(shown)


@hypothesis.given(st.text(max_size=400))
def test_file_name_is_one_that_a_file_may_have(text):
  name = shown_names.file_name(text)
  assert len(name.encode()) <= 200
  assert all(each.isalnum() or each in "_.+-" for each in name)


def test_long_file_names_are_told_apart():
  one, other = (shown_names.file_name("é" * 300 + end) for end in "ab")
  assert one != other and one[:80] == other[:80] == "é" * 80
  assert shown_names.file_name("lr=1e-05, a/b") == "lr_1e-05_a_b"
  # They have 200 bytes at most.
  assert shown_names.file_name("a" * 200) == "a" * 200
  name = shown_names.file_name("a" * 201)
  assert len(name) == 200 and name.startswith("a" * 183 + "-")


@pytest.mark.parametrize("text", ["x\udc80", "\ud83d", "\udfff"])
def test_half_of_a_pair_is_no_text(text):
  assert not shown_names.is_encodable(text)
  assert shown_names.is_encodable("\ud7ff \ue000 \U0001f642 \x00")
