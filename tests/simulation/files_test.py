"""Tests of the writing of files."""

import errno
import pathlib

import pytest
import tensorflow as tf

from tff_shift.simulation import files


class TestWriting:
  def test_errors_of_files_are_told_in_one_line(self):
    path = pathlib.Path("folder") / "file"
    for error in (
      OSError(errno.ENOSPC, "No space left on device"),
      tf.errors.ResourceExhaustedError(None, None, "No space left\non it"),
    ):
      with pytest.raises(files.WriteError) as raised, files.writing(path):
        raise error
      assert str(raised.value).startswith(
        "folder/file cannot be written: No space left"
      )
      assert "\n" not in str(raised.value)

  def test_other_errors_stay_what_they_are(self):
    with pytest.raises(KeyError), files.writing(pathlib.Path("file")):
      raise KeyError("other")


def test_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
  path = tmp_path / "file"
  files.write_atomically(path, "old")

  def fails(*_):
    raise OSError(errno.ENOSPC, "No space left on device")

  with monkeypatch.context() as patches:
    patches.setattr(files.os, "replace", fails)
    with pytest.raises(files.WriteError, match="file cannot be written: No sp"):
      files.write_atomically(path, "new")
  assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
    "file": "old"
  }
  files.write_atomically(path, "new")
  assert path.read_text() == "new"
