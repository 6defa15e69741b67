"""Tokens of rooms, and the check, in a folder with a history of its own."""

import json
import subprocess

import pytest

from benchmarks import size

_SOURCE = '''"""A docstring of many words.

Of several lines.
"""
# A comment.
def double(x):  # Another one.
  """Doubles."""

  return (
    f"{x!r:>{3 + 4}} {'a'}",
    "a string"
    "of two parts",
  )
'''
# def double ( x ) : return ( f"" , "" "" , )
_NUM = 14


@pytest.fixture
def root(tmp_path, monkeypatch):
  """A folder with the room tff_shift/models, whose number is in size.json."""
  monkeypatch.setattr(size, "_ROOT", tmp_path)
  for name in ("tff_shift/models", "benchmarks"):
    (tmp_path / name).mkdir(parents=True)
  (tmp_path / "tff_shift" / "models" / "linear.py").write_text(_SOURCE)
  return tmp_path


@pytest.fixture
def set_number(root):
  """Returns `set_number(number)`, which writes size.json."""

  def write(number):
    text = json.dumps({"tff_shift/models": number})
    (root / "benchmarks" / "size.json").write_text(text)

  return write


@pytest.fixture
def commit(root):
  """Returns `commit()`, which commits all files."""

  def git(*arguments):
    names = "-c", "user.name=a", "-c", "user.email=a@b.c"
    command = ["git", "-C", str(root), *names, *arguments]
    subprocess.run(command, check=True, capture_output=True)

  git("init", "--quiet")

  def add_all():
    git("add", "--all")
    git("commit", "--quiet", "--message=Change")

  return add_all


def test_comments_and_docstrings_do_not_count(root):
  assert size.rooms(root) == {"tff_shift/models": _NUM}


@pytest.mark.parametrize(
  "number, is_wrong", [(_NUM, False), (_NUM + 1, False), (_NUM - 1, True)]
)
def test_growth_without_git(set_number, number, is_wrong):
  set_number(number)
  lines = size.check()
  assert bool(lines) == is_wrong
  if is_wrong:
    assert lines[0].startswith("tff_shift/models: 13 -> 14 tokens: over 2 %")


def test_two_percent_are_no_growth():
  assert size.grown({"a": 100, "b": 100}, {"a": 102, "b": 103}, 1.02) == [
    "b: 100 -> 103 tokens"
  ]
  assert size.grown({}, {"a": 1}, 1.02) == ["a: 0 -> 1 tokens"]


def test_raised_number_needs_a_line_in_the_changelog(root, set_number, commit):
  changelog = root / "CHANGELOG.md"
  changelog.write_text("")
  set_number(_NUM)
  # A history of one commit says nothing about growth.
  commit()
  assert size.check() == []
  set_number(_NUM + 1)
  (line,) = size.check()
  assert line.startswith("tff_shift/models: 14 -> 15 tokens in benchmarks/size")
  commit()
  assert size.check() == [line]
  # A lower number needs none.
  set_number(_NUM)
  assert size.check() == []
  commit()
  set_number(_NUM + 1)
  changelog.write_text("A new model, for the tests.\n")
  assert size.check() == []
  commit()
  (root / "later").touch()
  commit()
  assert size.check() == []
