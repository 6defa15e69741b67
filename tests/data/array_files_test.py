"""Tests of files of arrays: whole, or refused in one line."""

import numpy as np
import pytest

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
    np.testing.assert_array_equal(arrays[name], array)


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
      np.testing.assert_array_equal(array, ARRAYS[name])
  # The arrays alone, with their headers, are half of the file.
  assert refused > len(content) / 2


@pytest.mark.parametrize("content", [b"", b"text\nof two lines", b"PK\x05\x06"])
def test_file_of_another_form_is_refused(path, content):
  path.write_bytes(content)
  with pytest.raises(ValueError, match=r"^it is not an \.npz file"):
    array_files.read_npz(path)


def test_objects_are_refused(path):
  np.savez(path, a=np.array([{}], object))
  with pytest.raises(ValueError, match=r"^it is damaged: Object arrays"):
    array_files.read_npz(path)


def test_damaged_npy_is_refused_in_one_line(tmp_path):
  path = tmp_path / "array.npy"
  np.save(path, np.arange(9))
  np.testing.assert_array_equal(array_files.map_npy(path), np.arange(9))
  content = path.read_bytes()
  for damaged in (b"", content[:-8], content[:20], b"\0" + content[1:]):
    path.write_bytes(damaged)
    with pytest.raises(ValueError) as error:
      array_files.map_npy(path)
    assert "\n" not in str(error.value)


def test_message_of_tensorflow_becomes_one_line():
  error = RuntimeError("{{function_node a}} it is\nbad [Op:Read] name:")
  assert array_files.first_line(error) == "it is"
  assert array_files.first_line(RuntimeError("bad [Op:Read] name:")) == "bad"
  assert array_files.first_line(KeyError()) == "KeyError"
