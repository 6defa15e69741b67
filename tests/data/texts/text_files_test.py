"""Tests of files of texts."""

import os

import pytest

from tff_shift.data.texts import text_files


def test_lines_end_where_a_line_ends(tmp_path):
  path = tmp_path / "titles.txt"
  path.write_bytes("\ufeffone\u2028still\ntwo".encode())
  assert list(text_files.lines(path)) == ["one\u2028still\n", "two"]


@pytest.mark.parametrize(
  "make, reason",
  [
    (os.mkfifo, "is a named pipe; it must be a file"),
    (lambda path: None, "cannot be read: No such file or directory"),
  ],
)
def test_what_is_no_file_is_refused(make, reason, tmp_path):
  path = tmp_path / "titles.txt"
  make(path)
  with pytest.raises(ValueError, match=f"^{path} {reason}$"):
    list(text_files.lines(path))
