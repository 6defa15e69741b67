"""Tests of names as pages and figures show them."""

import hypothesis
import pytest
from hypothesis import strategies as st

from tff_shift import shown_names


@pytest.mark.parametrize(
  ("name", "shown"),
  [
    ("$a_b^{c} 100 %", "$a_b^{c} 100 %"),
    ("two\nlines\tand\x00\x7f", r"two\nlines\tand\x00\x7f"),
    ("\u2028\ud800", r"\u2028\ud800"),
    ("हिन्दी café\N{NO-BREAK SPACE}1", "हिन्दी café\N{NO-BREAK SPACE}1"),
  ],
)
def test_only_what_no_font_shows_is_escaped(name, shown):
  assert shown_names.printable(name) == shown


@hypothesis.given(st.text(max_size=40), st.integers(3, 30))
def test_long_names_keep_begin_and_end(name, length):
  shown = shown_names.shortened(name, length)
  assert len(shown) == min(len(name), length)
  begin, cut, end = shown.partition("…")
  if len(name) > length:
    assert cut and name.startswith(begin) and name.endswith(end)
  else:
    assert shown == name


@hypothesis.given(st.text(max_size=40))
def test_what_is_shown_can_be_written_in_one_line(name):
  shown = shown_names.printable(name)
  assert len(f"{shown}.".splitlines()) == 1
  assert shown.encode("utf-8").decode() == shown
