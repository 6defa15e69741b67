"""Tests of trackers: TensorBoard's files, and what is handed on."""

import asyncio
import types

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from tff_shift import files
from tff_shift.reporting.trackers import trackers


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


class _Recorder:
  """A tracker that notes what it is told."""

  def __init__(self, error=None):
    self.told = []
    self._error = error

  def start(self, name, parameters):
    self.told.append(("start", name, dict(parameters)))
    return self

  def scalars(self, values, step, group=""):
    self.told.append(("scalars", values, step, group))

  def artifact(self, path, folder=""):
    self.told.append(("artifact", path, folder))

  def end(self, is_done=True):
    self.told.append(("end", is_done))
    if self._error:
      raise self._error


class TestTensorBoard:
  def test_values_can_be_read_back_at_once(self, tmp_path):
    board = trackers.TensorBoard(tmp_path / "board")
    for name, offset in (("fed_avg/seed_0", 0.0), ("fed_evp/seed_0", 8.0)):
      run = board.start(name, {"learning_rate": 0.1})
      for step in (1, 2, 5):
        run.scalars({"loss": offset + step}, step)
        run.scalars({"accuracy": 0.5 * step}, step, group="iid")
      run.artifact(tmp_path / "none")
      run.end()
    for name, offset in (("fed_avg", 0.0), ("fed_evp", 8.0)):
      folder = tmp_path / "board" / name / "seed_0"
      assert _events(folder) == {
        "loss": [(step, offset + step) for step in (1, 2, 5)]
      }
      assert _events(folder / "iid") == {
        "accuracy": [(1, 0.5), (2, 1.0), (5, 2.5)]
      }

  def test_nothing_is_written_before_a_scalar(self, tmp_path):
    trackers.TensorBoard(tmp_path / "board").start("run", {}).end()
    assert not list(tmp_path.iterdir())

  def test_values_that_are_told_again_come_once(self, tmp_path):
    run = trackers.TensorBoard(tmp_path).start("a/b", {})
    for step in (1, 2, 3):
      run.scalars({"accuracy": 0.5}, step)
    board = trackers.TensorBoard(tmp_path)
    run = board.start("a/b", {})
    for step in (1, 2):
      run.scalars({"accuracy": 0.5}, step)
    (file,) = tmp_path.rglob("events*")
    assert _events(file.parent) == {"accuracy": [(1, 0.5), (2, 0.5)]}
    # A name that the other begins with has files of its own.
    board.start("a", {}).scalars({"loss": 0.5}, 1)
    assert file.exists()

  def test_links_are_not_written_through(self, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "events.1").write_text("mine")
    board = tmp_path / "board"
    board.mkdir()
    (board / "a").symlink_to(outside)
    (tmp_path / "other").symlink_to(outside)
    for folder, name in (
      (board, "a"),
      (board, "a/b"),
      (tmp_path / "other", ""),
    ):
      run = trackers.TensorBoard(folder).start(name, {})
      with pytest.raises(files.WriteError, match="it is a link"):
        run.scalars({"loss": 1.0}, 1)
    assert [each.name for each in outside.iterdir()] == ["events.1"]

  def test_names_of_files_cannot_be_guessed(self, tmp_path):
    for name in "ab":
      trackers.TensorBoard(tmp_path).start(name, {}).scalars({"loss": 1.0}, 1)
    suffixes = {path.suffix for path in tmp_path.rglob("events*")}
    assert len(suffixes) == 2
    assert all(len(suffix) == 17 for suffix in suffixes)

  @pytest.mark.parametrize("size", [10, 1000])
  def test_full_disk_is_told_in_one_line(self, tmp_path, no_file_above, size):
    run = trackers.TensorBoard(tmp_path / "board").start("a", {})
    with (
      no_file_above(size),
      pytest.raises(files.WriteError, match="a cannot be written: ") as raised,
    ):
      for step in range(100):
        run.scalars({"loss": 1.0}, step)
    assert str(raised.value).endswith("File too large")
    assert "\n" not in str(raised.value)
    run = trackers.TensorBoard(tmp_path / "board").start("a", {})
    run.scalars({"loss": 1.0}, 1)
    assert _events(tmp_path / "board" / "a") == {"loss": [(1, 1.0)]}

  def test_releases_below_a_running_event_loop(self, tmp_path):
    async def cell_of_a_notebook():
      trackers.TensorBoard(tmp_path).start("run", {}).scalars({"loss": 2.0}, 3)

    asyncio.run(cell_of_a_notebook())
    assert _events(tmp_path / "run") == {"loss": [(3, 2.0)]}


def test_several_hand_on_everything_in_order():
  both = [_Recorder(), _Recorder()]
  with trackers.started(trackers.Several(both), "run", {"a": 1}) as run:
    run.scalars({"loss": 1.0}, 2, "iid")
    run.artifact("file", "figures")
  expected = [
    ("start", "run", {"a": 1}),
    ("scalars", {"loss": 1.0}, 2, "iid"),
    ("artifact", "file", "figures"),
    ("end", True),
  ]
  assert [each.told for each in both] == [expected, expected]
  with trackers.started(trackers.Several([]), "run") as run:
    run.scalars({"loss": 1.0}, 2)


def test_run_that_fails_ends_as_failed_and_its_own_error_is_told():
  recorder = _Recorder(files.WriteError("server", "gone"))
  with pytest.raises(KeyboardInterrupt), trackers.started(recorder, "run"):
    raise KeyboardInterrupt
  assert recorder.told[-1] == ("end", False)


def test_callbacks_of_drivers_tell_what_was_measured():
  recorder = _Recorder()
  metrics = {"client_accuracy": 50.0, "server_accuracy": None}
  measured = types.SimpleNamespace(
    rows=lambda step: [
      ({"round": step}, metrics),
      ({"stream": "iid", "period": 7}, metrics),
    ]
  )
  tracking = trackers.Tracking(recorder)
  tracking.on_step(1, 0.5, None)
  tracking.on_step(2, 0.5, measured)
  tracking.on_loss(3, 0.25)
  assert recorder.told == [
    ("scalars", {"client_accuracy": 50.0}, 2, ""),
    ("scalars", {"client_accuracy": 50.0}, 7, "iid"),
    ("scalars", {"train_loss": 0.25}, 3, ""),
  ]
