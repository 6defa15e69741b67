"""Tests of `files`."""

import errno
import os
import stat

import pytest
import tensorflow as tf

from tff_shift import files


@pytest.fixture
def umask():
  before = os.umask(0o027)
  yield 0o027
  os.umask(before)


def test_replaced_file_has_the_mode_of_the_umask(tmp_path, umask):
  files.write_atomically(tmp_path / "a.json", "new")
  found = (tmp_path / "a.json").stat()
  assert stat.S_IMODE(found.st_mode) == 0o666 & ~umask
  assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_a_link_is_replaced_and_not_followed(tmp_path):
  outside = tmp_path / "outside"
  outside.write_text("kept")
  (tmp_path / "a.json").symlink_to(outside)
  files.write_atomically(tmp_path / "a.json", "new")
  assert outside.read_text() == "kept"
  assert (tmp_path / "a.json").read_text() == "new"
  assert not (tmp_path / "a.json").is_symlink()


def test_temporary_name_is_another_each_time_and_fits(tmp_path):
  path = tmp_path / ("n" * 250)
  names = {files.temporary_path(path).name for _ in range(50)}
  assert len(names) == 50
  assert max(map(len, names)) < 255


def test_a_taken_temporary_name_is_not_written_through(tmp_path, monkeypatch):
  outside = tmp_path / "outside"
  outside.write_text("kept")
  planted = tmp_path / "planted"
  planted.symlink_to(outside)
  monkeypatch.setattr(files, "temporary_path", lambda path: planted)
  with pytest.raises(files.WriteError, match="File exists"):
    files.write_atomically(tmp_path / "a.json", "new")
  assert outside.read_text() == "kept"
  assert planted.is_symlink()


def test_old_file_is_kept_where_writing_fails(tmp_path):
  (tmp_path / "a").write_text("old")
  with pytest.raises(RuntimeError), files.replacing(tmp_path / "a") as file:
    file.write(b"half")
    raise RuntimeError
  assert [each.name for each in tmp_path.iterdir()] == ["a"]
  assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (os.mkdir, "is a folder; a file must be in its place"),
    (os.mkfifo, "is a named pipe; a file must be in its place"),
    (lambda path: path.write_bytes(b"abc"), "has 3 bytes; at most 2 are read"),
    (lambda path: path.write_bytes(b"\xff"), "is not UTF-8 text (byte 0)"),
  ],
)
def test_what_is_no_text_file_is_refused_at_once(tmp_path, make, message):
  path = tmp_path / "a"
  make(path)
  with pytest.raises(ValueError) as caught:
    if "bytes" in message:
      files.read_bytes(path, max_bytes=2)
    files.read_text(path)
  assert str(caught.value) == f"{path} {message}"


def test_a_missing_file_is_said_to_be_missing(tmp_path):
  with pytest.raises(FileNotFoundError):
    files.read_bytes(tmp_path / "a")


def test_errors_of_writing_are_told_in_one_line(tmp_path):
  for error in (
    OSError(errno.ENOSPC, "No space left on device"),
    tf.errors.ResourceExhaustedError(None, None, "No space left\non it"),
  ):
    with pytest.raises(files.WriteError) as raised, files.writing(tmp_path):
      raise error
    assert str(raised.value).startswith(
      f"{tmp_path} cannot be written: No space left"
    )
    assert "\n" not in str(raised.value)
  with pytest.raises(KeyError), files.writing(tmp_path):
    raise KeyError("other")
