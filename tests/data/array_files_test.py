"""Tests of files of arrays: whole, or refused in one line."""

import os

import numpy as np
import pytest
from numpy.lib import format
from numpy.testing import assert_array_equal

from tff_shift._util import memory
from tff_shift.data import array_files

ARRAYS = {"a/kernel": np.arange(6, dtype=np.float32), "b": np.array(5)}


@pytest.fixture
def path(tmp_path):
  np.savez(tmp_path / "arrays.npz", **ARRAYS)
  return tmp_path / "arrays.npz"


def test_all_arrays_are_read(path):
  arrays = array_files.read_npz(path)
  assert arrays.keys() == ARRAYS.keys()
  for name, array in ARRAYS.items():
    assert arrays[name].dtype == array.dtype
    assert_array_equal(arrays[name], array)


def test_flipped_bit_is_found_or_does_no_harm(path):
  content = path.read_bytes()
  refused = 0
  for place in range(len(content)):
    damaged = bytearray(content)
    damaged[place] ^= 1 << place % 8
    path.write_bytes(damaged)
    try:
      arrays = array_files.read_npz(path)
    except ValueError as error:
      refused += 1
      assert "\n" not in str(error) and str(error).startswith("it is ")
      continue
    # In dates and the like; names stand in the file twice.
    for name, array in arrays.items():
      assert_array_equal(array, ARRAYS[name])
  # The arrays alone, with their headers, are half of the file.
  assert refused > len(content) / 2


@pytest.mark.parametrize("content", [b"", b"text\nof two lines", b"PK\x05\x06"])
def test_file_of_another_form_is_refused(path, content, refusal):
  path.write_bytes(content)
  assert refusal(array_files.read_npz, path).startswith(
    "it is not an .npz file"
  )


class _Harmful:
  """What runs code when it is unpickled."""

  def __reduce__(self):
    return pytest.fail, ("it was unpickled",)


@pytest.mark.parametrize("objects", [np.array(["a", "b"], object), _Harmful()])
def test_array_of_objects_is_named_with_what_to_do(path, objects, refusal):
  np.savez(path, right=np.zeros(2), other=np.array(objects))
  told = refusal(array_files.read_npz, path)
  assert told.startswith("its array 'other' has Python objects")
  assert "astype(str)" in told and "savez(path, **dictionary)" in told
  assert "damaged" not in told and "\n" not in told


def test_what_does_not_fit_in_memory_is_not_unpacked(
  tmp_path, monkeypatch, refusal
):
  path = tmp_path / "arrays.npz"
  np.savez_compressed(path, x=np.zeros(10**6), y=np.zeros(10))
  # So much is there beside the file, which is a hundred times smaller.
  monkeypatch.setattr(memory, "limit", lambda: 8 * 10**6)
  monkeypatch.setattr(format, "read_array", pytest.fail)
  assert refusal(array_files.read_npz, path) == (
    "it is too large: this would need 7.63 MiB of memory, but only 7.63 MiB are"
    " available"
  )


def test_pipe_is_refused(tmp_path, refusal):
  os.mkfifo(tmp_path / "arrays.npz")
  assert refusal(array_files.read_npz, tmp_path / "arrays.npz") == (
    "it is a named pipe; it must be a file"
  )


def test_damaged_npy_is_refused_in_one_line(tmp_path, refusal):
  path = tmp_path / "array.npy"
  np.save(path, np.arange(9))
  assert_array_equal(array_files.map_npy(path), np.arange(9))
  content = path.read_bytes()
  for damaged in (b"", content[:-8], content[:20], b"\0" + content[1:]):
    path.write_bytes(damaged)
    refusal(array_files.map_npy, path)
  path.unlink()
  os.mkfifo(path)
  assert "array.npy is a named pipe" in refusal(array_files.map_npy, path)


def test_message_of_tensorflow_becomes_one_line():
  error = RuntimeError("{{function_node a}} it is\nbad [Op:Read] name:")
  assert array_files.first_line(error) == "it is"
  assert array_files.first_line(RuntimeError("bad [Op:Read] name:")) == "bad"
  assert array_files.first_line(KeyError()) == "KeyError"


def test_digest_depends_on_type_shape_and_content():
  array = np.arange(6, dtype=np.int32).reshape(2, 3)
  others = [array.view(np.float32), array.reshape(3, 2), array + 1, array.T]
  digests = [array_files.digest(each) for each in [array, *others]]
  assert len(set(digests)) == 5
  # Equal content in another order of memory.
  assert array_files.digest(np.asfortranarray(array)) == digests[0]
