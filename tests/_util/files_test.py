"""Tests of `files`."""

import errno
import os
import pathlib
import shutil
import stat

import pytest
import tensorflow as tf

from tff_shift._util import files


@pytest.fixture
def umask():
  before = os.umask(0o027)
  yield 0o027
  os.umask(before)


def test_replaced_file_has_the_mode_of_the_umask_and_links_are_not_followed(
  tmp_path, umask
):
  outside, path = tmp_path / "outside", tmp_path / "a.json"
  outside.write_text("kept")
  path.symlink_to(outside)
  files.write_atomically(path, "new")
  assert outside.read_text() == "kept"
  assert path.read_text() == "new" and not path.is_symlink()
  assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
  assert {each.name for each in tmp_path.iterdir()} == {"a.json", "outside"}


def test_temporary_name_is_another_each_time_and_fits(tmp_path):
  path = tmp_path / ("n" * 250)
  names = {files.temporary_path(path).name for _ in range(50)}
  assert len(names) == 50
  assert max(map(len, names)) < 255


def test_old_file_is_kept_where_writing_fails(tmp_path):
  (tmp_path / "a").write_text("old")
  with pytest.raises(RuntimeError), files.replacing(tmp_path / "a") as file:
    file.write(b"half")
    raise RuntimeError
  assert [each.name for each in tmp_path.iterdir()] == ["a"]
  assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize(
  "make, message",
  [
    (os.mkdir, "is a folder; it must be a file"),
    (os.mkfifo, "is a named pipe; it must be a file"),
    (lambda path: path.write_bytes(b"abc"), "has 3 bytes; at most 2 are read"),
    (lambda path: path.write_bytes(b"\xff"), "is not UTF-8 text (byte 0)"),
  ],
)
def test_what_is_no_text_file_is_refused_at_once(tmp_path, make, message):
  path = tmp_path / "a"
  with pytest.raises(FileNotFoundError):
    files.read_bytes(path)
  make(path)
  with pytest.raises(ValueError) as caught:
    if "bytes" in message:
      files.read_bytes(path, max_bytes=2)
    files.read_text(path)
  assert str(caught.value) == f"{path} {message}"


def test_new_folder_takes_the_place_of_what_is_there(tmp_path, umask):
  outside = tmp_path / "outside"
  outside.mkdir()
  (outside / "mine").write_text("mine")
  (tmp_path / "old").mkdir()
  (tmp_path / "old" / "file").write_text("old")
  (tmp_path / "link").symlink_to(outside)
  for name in ("old", "link", "none"):
    with files.replacing_folder(tmp_path / name) as folder:
      # The old one stays until the new one is whole.
      assert (tmp_path / name).exists() == (name != "none")
      (folder / "new").write_text("new")
    assert os.listdir(tmp_path / name) == ["new"]
    assert not (tmp_path / name).is_symlink()
    found = (tmp_path / name).stat()
    assert stat.S_IMODE(found.st_mode) == 0o777 & ~umask
  assert os.listdir(outside) == ["mine"]


def test_old_folder_is_kept_where_writing_fails(tmp_path, no_file_above):
  (tmp_path / "a").mkdir()
  (tmp_path / "a" / "file").write_text("old")
  with (
    pytest.raises(files.WriteError, match=r"a cannot be .*File too large"),
    files.replacing_folder(tmp_path / "a") as folder,
    no_file_above(10),
  ):
    (folder / "file").write_text("longer than ten")
  assert os.listdir(tmp_path) == ["a"]
  assert (tmp_path / "a" / "file").read_text() == "old"


def test_whether_a_folder_can_be_written_is_tried(tmp_path):
  files.check_writable(tmp_path / "a" / "b")
  assert os.listdir(tmp_path) == []
  (tmp_path / "a").write_text("a file")
  for path in (tmp_path / "a", pathlib.Path("/dev/null/b")):
    with pytest.raises(files.WriteError, match="Not a directory"):
      files.check_writable(path)


def test_errors_of_writing_are_told_in_one_line(tmp_path):
  for error in (
    OSError(errno.ENOSPC, "No space left on device"),
    shutil.Error([("a", "b", "x"), ("c", "d", "No space left on device")]),
    tf.errors.ResourceExhaustedError(
      None, None, "{{node x}} No space left\non it [Op:Save]"
    ),
  ):
    with pytest.raises(files.WriteError) as raised, files.writing(tmp_path):
      raise error
    assert str(raised.value).startswith(
      f"{tmp_path} cannot be written: No space left"
    )
    assert "\n" not in str(raised.value)
  with pytest.raises(KeyError), files.writing(tmp_path):
    raise KeyError("other")
  # What is named is the very file.
  with (
    pytest.raises(files.WriteError, match=r"^/inner cannot be written: full$"),
    files.writing(tmp_path),
  ):
    raise files.WriteError("/inner", "full")
