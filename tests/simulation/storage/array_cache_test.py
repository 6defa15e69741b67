"""Tests of the cache of arrays: round trip, damage, interruption."""

import os

import numpy as np
import pytest
from absl import logging

from tff_shift._util import files
from tff_shift.simulation.storage import array_cache

KEY = array_cache.key({"seed": 1})
ARRAYS = {
  "backbone/layer/kernel": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
  "num_epochs": np.array(5),
}


@pytest.fixture
def path(tmp_path):
  """A file that holds `ARRAYS`."""
  path = tmp_path / "result.npz"
  array_cache.save(path, KEY, ARRAYS)
  return path


@pytest.fixture
def warnings(monkeypatch):
  """What is logged as a warning."""
  lines = []
  monkeypatch.setattr(
    logging, "warning", lambda *args: lines.append(args[0] % args[1:])
  )
  return lines


def test_what_was_saved_is_loaded(path, warnings):
  arrays = array_cache.load(path, KEY, list(ARRAYS))
  assert list(arrays) == list(ARRAYS)
  for name, array in ARRAYS.items():
    assert arrays[name].dtype == array.dtype
    np.testing.assert_array_equal(arrays[name], array)
  assert os.listdir(path.parent) == ["result.npz"]
  assert not warnings


def test_missing_file_is_no_result_and_no_warning(tmp_path, warnings):
  assert array_cache.load(tmp_path / "none.npz", KEY, list(ARRAYS)) is None
  assert not warnings


def truncate(path):
  path.write_bytes(path.read_bytes()[:-100])


def empty(path):
  path.write_bytes(b"")


def flip_bit_of_array(path):
  content = path.read_bytes()
  at = content.index(ARRAYS["backbone/layer/kernel"].tobytes()) + 9
  path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def replace_by_other_result(path):
  array_cache.save(path, array_cache.key({"seed": 2}), ARRAYS)


@pytest.mark.parametrize(
  "damage",
  [
    truncate,
    empty,
    flip_bit_of_array,
    replace_by_other_result,
  ],
)
def test_damaged_file_is_no_result_and_one_warning(damage, path, warnings):
  damage(path)
  assert array_cache.load(path, KEY, list(ARRAYS)) is None
  (warning,) = warnings
  assert str(path) in warning
  assert "\n" not in warning


@pytest.mark.parametrize(
  "module, name", [(np.lib.format, "write_array"), (os, "replace")]
)
def test_interrupted_write_leaves_the_folder_as_it_was(
  module, name, path, monkeypatch
):
  content = path.read_bytes()

  def interrupt(file, *args, **kwargs):
    if name == "write_array":
      file.write(b"half of it")
    raise KeyboardInterrupt

  monkeypatch.setattr(module, name, interrupt)
  for written in (path, path.with_name("other.npz")):
    with pytest.raises(KeyboardInterrupt):
      array_cache.save(written, KEY, {"num_epochs": np.array(6)})
  assert os.listdir(path.parent) == ["result.npz"]
  assert path.read_bytes() == content


def test_full_disk_is_told(path, no_file_above):
  content = path.read_bytes()
  with (
    no_file_above(100),
    pytest.raises(files.WriteError, match=r"result\.npz cannot be written"),
  ):
    array_cache.save(path, KEY, ARRAYS)
  assert path.read_bytes() == content
  assert os.listdir(path.parent) == ["result.npz"]


def test_key_depends_on_content_and_not_on_order():
  assert array_cache.key({"a": 1, "b": [2]}) == array_cache.key(
    {"b": [2], "a": 1}
  )
  keys = {
    array_cache.key(description)
    for description in ({"a": 1}, {"a": 2}, {"b": 1}, {"a": [1]}, {"a": 1.5})
  }
  assert len(keys) == 5
