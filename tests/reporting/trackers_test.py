"""TensorBoard's files, and what trackers are told."""

import types

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from tff_shift._util import files
from tff_shift.reporting import trackers


def _events(folder):
  """Returns (step, value) by scalar of a folder, without those within it."""
  accumulator = event_accumulator.EventAccumulator(str(folder))
  accumulator.Reload()
  return {
    name: [
      (event.step, float(tf.make_ndarray(event.tensor_proto)))
      for event in accumulator.Tensors(name)
    ]
    for name in accumulator.Tags()["tensors"]
  }


class _Recorder(trackers.Tracker):
  """A tracker that notes what it is told."""

  def __init__(self, error=None):
    self.told = []
    self._error = error

  def scalars(self, values, step, group=""):
    self.told.append((values, step, group))

  def end(self, is_done=True):
    self.told.append(is_done)
    if self._error:
      raise self._error


class TestTensorBoard:
  def test_values_can_be_read_back_at_once(self, tmp_path):
    for name, offset in (("fed_avg/seed_0", 0.0), ("fed_evp/seed_0", 8.0)):
      with trackers.TensorBoard(tmp_path, name) as run:
        for step in (1, 2, 5):
          run.scalars({"loss": offset + step}, step)
          run.scalars({"accuracy": 0.5 * step}, step, group="iid")
        run.artifact(tmp_path / "none")
    for name, offset in (("fed_avg", 0.0), ("fed_evp", 8.0)):
      folder = tmp_path / name / "seed_0"
      assert _events(folder) == {
        "loss": [(step, offset + step) for step in (1, 2, 5)]
      }
      assert _events(folder / "iid") == {
        "accuracy": [(1, 0.5), (2, 1.0), (5, 2.5)]
      }

  def test_values_that_are_told_again_come_once(self, tmp_path):
    for steps in ((1, 2, 3), (1, 2)):
      run = trackers.TensorBoard(tmp_path, "a/b")
      for step in steps:
        run.scalars({"accuracy": 0.5}, step)
    (file,) = tmp_path.rglob("events*")
    assert _events(file.parent) == {"accuracy": [(1, 0.5), (2, 0.5)]}
    # A name that the other begins with has files of its own.
    trackers.TensorBoard(tmp_path, "a").scalars({"loss": 0.5}, 1)
    assert file.exists()

  @pytest.mark.parametrize("size", [10, 1000])
  def test_full_disk_is_told_in_one_line(self, tmp_path, no_file_above, size):
    run = trackers.TensorBoard(tmp_path, "a")
    with (
      no_file_above(size),
      pytest.raises(files.WriteError, match="a cannot be written: ") as raised,
    ):
      for step in range(100):
        run.scalars({"loss": 1.0}, step)
    assert str(raised.value).endswith("File too large")
    assert "\n" not in str(raised.value)
    trackers.TensorBoard(tmp_path, "a").scalars({"loss": 1.0}, 1)
    assert _events(tmp_path / "a") == {"loss": [(1, 1.0)]}


def test_run_that_fails_ends_as_failed_and_its_own_error_is_told():
  recorder = _Recorder(files.WriteError("server", "gone"))
  with pytest.raises(KeyboardInterrupt), recorder:
    raise KeyboardInterrupt
  with pytest.raises(files.WriteError), recorder:
    pass
  assert recorder.told == [False, True]


def test_what_was_measured_is_told():
  recorder = _Recorder()
  metrics = {"client_accuracy": 50.0, "server_accuracy": None}
  measured = types.SimpleNamespace(
    rows=lambda step: [
      ({"round": step}, metrics),
      ({"stream": "iid", "period": 7}, metrics),
    ]
  )
  recorder.on_step(1, 0.5, None)
  recorder.on_step(2, 0.5, measured)
  recorder.on_loss(3, 0.25)
  assert recorder.told == [
    ({"client_accuracy": 50.0}, 2, ""),
    ({"client_accuracy": 50.0}, 7, "iid"),
    ({"train_loss": 0.25}, 3, ""),
  ]
