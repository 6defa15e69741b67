"""The values of single clients: in memory, in a file, and as data frames."""

import sqlite3
from typing import NamedTuple

import numpy as np
import pytest

from tests.fixtures.refusals import refused
from tests.simulation.engine import driver_test
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import driver
from tff_shift.simulation.engine import frames
from tff_shift.simulation.storage import client_values
from tff_shift.simulation.storage import run_file

NAN = np.nan


def values_of(step, *rows):
  places = [{"stream": "a", "period": step + each} for each in range(len(rows))]
  return client_values.ClientValues(step, places, {"accuracy": np.array(rows)})


class TestInMemory:
  def test_clients_that_were_not_evaluated_have_nan(self):
    found = client_values.of_some(
      3,
      {"round": 3},
      5,
      [
        ("client_", [0, 2], {"accuracy": np.array([50, 75], np.float32)}),
        ("new_client_", [4], {"accuracy": np.array([20], np.float32)}),
      ],
    )
    assert (found.step, found.places) == (3, ({"round": 3},))
    np.testing.assert_array_equal(
      found["client_accuracy"], np.float32([[50, NAN, 75, NAN, NAN]])
    )
    np.testing.assert_array_equal(
      found["new_client_accuracy"], np.float32([[NAN] * 4 + [20]])
    )

  def test_too_many_clients_have_no_values(self, monkeypatch):
    monkeypatch.setattr(client_values, "MAX_CLIENTS", 4)
    parts = [("", [0], {"accuracy": [1.0]})]
    assert client_values.of_some(1, {}, 4, parts) is not None
    assert client_values.of_some(1, {}, 5, parts) is None

  def test_mean_is_over_the_rows_with_a_value(self):
    np.testing.assert_array_equal(
      client_values.mean(
        [np.float32([[10, NAN, NAN]]), np.float32([[20, 30, NAN]])]
      ),
      [15, 30, NAN],
    )

  def test_equality_is_of_all_values(self):
    one = values_of(1, [1.0, NAN])
    assert one == values_of(1, [1.0, NAN])
    assert one != values_of(1, [1.0, 2.0])
    assert one != values_of(2, [1.0, NAN])

  def test_frame_has_a_row_for_each_value(self):
    frame = frames.of_clients(
      [values_of(1, [1, NAN], [3, 4]), None, values_of(9, [NAN, 6])],
      ["ann", "bo"],
    )
    assert frame.values.tolist() == [
      ["a", 1, 0, "ann", 1.0],
      ["a", 2, 0, "ann", 3.0],
      ["a", 2, 1, "bo", 4.0],
      ["a", 9, 1, "bo", 6.0],
    ]
    assert list(frame) == [
      *("stream", "period", "client", "client_name", "accuracy")
    ]
    assert frames.of_clients([None]).empty

  def test_rows_have_the_columns_of_metrics(self):
    frame = frames.of_rows(
      [({"round": 1}, {"a": None, "b": 2.0}), ({"round": 2}, {"b": 3.0})]
    )
    assert list(frame) == ["round", "a", "b"]
    assert frame["b"].tolist() == [2.0, 3.0] and frame["a"].isna().all()
    assert frame["a"].dtype == np.float64


class Measured(NamedTuple):
  step: int
  clients: client_values.ClientValues | None = None

  def rows(self, step):
    """See `callbacks.Measurements`."""
    yield {"round": step}, {}


class Evaluating(driver.Steps):
  """Evaluates every second step and the last one, as `evolving` does."""

  client_names = ("ann", "bo")

  def __init__(self, num_steps, stop_in=None):
    self.num_steps = num_steps
    self._stop_in = stop_in

  def start(self, storage, callback):
    running = driver_test.Counting(callback.on_loss)
    running.states.attach(storage)
    return running

  def step(self, running, step, measured):
    running.step()
    if step == self._stop_in:
      raise KeyboardInterrupt
    if step % 2 == 0 or step == self.num_steps:
      measured.append(Measured(step, values_of(step, [step, NAN])))

  def make(self, **fields):
    return Measured(**fields)

  def told(self, measured):
    return measured.step, None, measured

  def revise(self, running, measured, done):
    measured[:] = [each for each in measured if each.step % 2 == 0]
    return done


class TestInAFile:
  @pytest.fixture
  def path(self, tmp_path):
    return tmp_path / "run.sqlite"

  @pytest.fixture
  def problems(self):
    return []

  def run(self, path, problems, num_steps, stop_in=None):
    saved = checkpoints.Run(
      path,
      "key",
      every=2,
      on_problem=problems.append,
      labels={"algorithm": "mine", "seed": 3},
    )
    return driver.run(Evaluating(num_steps, stop_in), [], saved)

  def steps(self, path):
    return [each.step for each in run_file.read_clients(path).values]

  def test_all_evaluations_stay_while_two_checkpoints_do(self, path, problems):
    done = self.run(path, problems, 9)
    saved = run_file.read_clients(path)
    assert saved.labels == {"algorithm": "mine", "seed": 3}
    assert saved.client_names == ["ann", "bo"]
    assert saved.values == [each.clients for each in done.measured]
    assert self.steps(path) == [2, 4, 6, 8, 9]
    with sqlite3.connect(path) as connection:
      assert connection.execute("SELECT step FROM checkpoints").fetchall() == [
        *((8,), (9,))
      ]
    connection.close()

  @pytest.mark.parametrize("stop_in", [1, 4, 5, 7])
  def test_interrupted_run_has_the_same_values(self, path, problems, stop_in):
    expected = self.run(path.with_name("whole"), problems, 9)
    with pytest.raises(KeyboardInterrupt):
      self.run(path, problems, 9, stop_in)
    found = self.run(path, problems, 9)
    assert found.measured == expected.measured
    assert self.steps(path) == [2, 4, 6, 8, 9]
    assert not problems

  def test_longer_run_keeps_those_that_it_has(self, path, problems):
    self.run(path, problems, 5)
    assert self.steps(path) == [2, 4, 5]
    # Step 5 is not evaluated in a longer run.
    found = self.run(path, problems, 8)
    assert [each.step for each in found.measured] == [2, 4, 6, 8]
    assert self.steps(path) == [2, 4, 6, 8]

  def test_damaged_values_are_noticed(self, path, problems):
    expected = self.run(path, problems, 9)
    with sqlite3.connect(path) as connection:
      connection.execute(
        "UPDATE measurements SET content = zeroblob(8) WHERE step = 9"
      )
    connection.close()
    with refused("accuracy of step 9 has changed"):
      run_file.read_clients(path)
    # The checkpoint of step 8 does not need them.
    assert self.run(path, problems, 9).measured == expected.measured
    assert len(problems) == 1
    assert "values of clients are damaged" in problems[0]
    assert self.steps(path) == [2, 4, 6, 8, 9]

  def test_other_files_are_refused_in_one_line(self, path):
    path.write_bytes(b"no database" * 1000)
    with refused(r"cannot be read .*file is not a data"):
      run_file.read_clients(path)
