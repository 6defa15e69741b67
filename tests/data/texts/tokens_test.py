"""Tests of texts as tokens."""

import json

import pytest

from tff_shift.data.texts import tokens


@pytest.fixture
def folder(tmp_path):
  """A model's folder with a tokenizer of four words."""
  size = tokens.write_word_tokenizer(
    tmp_path / "tokenizer.json", [",", "ba", "du", "ki"]
  )
  (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size}))
  return tmp_path


def test_words_become_their_numbers_behind_the_begin(folder):
  found = tokens.tokenize(["ba, du", "ki", "ki xyz"], folder, 5)
  # 0 is the unknown, 1 the begin, 2 the comma.
  assert found.tolist() == [
    [1, 3, 2, 4, tokens.PADDING],
    [1, 5, *[tokens.PADDING] * 3],
    [1, 5, 0, *[tokens.PADDING] * 2],
  ]
  assert found.dtype == "int32"


def test_of_a_long_text_the_last_words_count(folder):
  assert tokens.tokenize(["ba du ki ba"], folder, 3).tolist() == [[1, 5, 3]]


def test_what_cannot_be_used_is_named(folder):
  def refusal(kind=ValueError):
    with pytest.raises(kind) as error:
      tokens.tokenize(["ki"], folder, 5)
    assert "\n" not in str(error.value)
    return str(error.value)

  (folder / "config.json").write_text(json.dumps({"vocab_size": 5}))
  assert "gives the token 5" in refusal() and "declares 5" in refusal()
  (folder / "config.json").write_text("{}")
  assert "config.json: Object missing required field `vocab_size`" in refusal()
  (folder / "tokenizer.json").write_text("{}")
  assert "tokenizer.json cannot be used" in refusal()
  (folder / "tokenizer.json").unlink()
  assert "there is no" in refusal(FileNotFoundError)
