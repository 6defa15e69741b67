"""The loop of all drivers, with rounds that only count."""

import gc
import signal
from typing import NamedTuple

import numpy as np
import pytest

from tff_shift._util import signals
from tff_shift.simulation.engine import callbacks
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import client_states
from tff_shift.simulation.engine import driver
from tff_shift.simulation.engine import early_stopping


class Value(NamedTuple):
  """A measurement: the accuracy after a step."""

  step: int
  accuracy: float

  def rows(self, step):
    """See `callbacks.Measurements`."""
    yield {"round": step}, {"accuracy": self.accuracy}


class Counting:
  """The part of `rounds.Rounds` that drivers use, without computations."""

  num_diverged = 0
  client_losses = None
  seconds_per_round = 1.0

  def __init__(self, on_loss):
    self.server_state = np.int32(0)
    self.states = client_states.ClientStates(
      1, lambda seeds: [()] * len(seeds), int
    )
    self.round_num, self.losses, self.seconds, self.starts = 0, [], [], [0]
    self._on_loss = on_loss
    self.is_closed = False

  def step(self):
    self.round_num += 1
    self.server_state = np.int32(self.round_num)
    self.losses.append(1 / self.round_num)
    self.seconds.append(0.5)
    self._on_loss(self.round_num, self.losses[-1])

  def resume(self, server_state, states, seconds, starts, num, losses, _):
    self.server_state, self.round_num = server_state, len(seconds)
    self.seconds, self.starts, self.losses = seconds, starts, losses
    for number, loss in enumerate(losses, 1):
      self._on_loss(number, loss)

  def kept_states(self):
    return int(self.server_state), ["state"]

  def close(self):
    self.is_closed = True
    self.states.close()


# The accuracy after each step that is evaluated.
ACCURACY = {2: 50.0, 4: 70.0, 6: 60.0, 8: 65.0, 10: 80.0}


class Rising(driver.Steps):
  """Evaluates every second step; the accuracy rises, falls and rises."""

  def __init__(self, num_steps=10):
    self.num_steps = num_steps
    self.num_ended = 0

  def start(self, storage, callback):
    self.running = Counting(callback.on_loss)
    return self.running

  def step(self, running, step, measured):
    running.step()
    if step in ACCURACY:
      measured.append(Value(step, ACCURACY[step]))
    return running.losses[-1]

  def make(self, **fields):
    return Value(**fields)

  def told(self, measured):
    return measured.step, 1 / measured.step, measured

  def end(self, running, measured):
    self.num_ended += 1


class Told(callbacks.Callback):
  """Remembers all calls."""

  def __init__(self):
    self.calls = []

  def on_start(self, running):
    self.calls.append(("start", running.round_num))

  def on_loss(self, round_num, loss):
    self.calls.append(("loss", round_num))

  def on_step(self, step, loss, measured):
    assert loss == 1 / step
    self.calls.append(("step", step, measured and measured.accuracy))

  def on_end(self, running):
    assert not running.is_closed
    self.calls.append(("end", running.round_num))


def test_callbacks_are_called_in_order():
  told, steps = Told(), Rising(3)
  done = driver.run(steps, [told], None)
  assert told.calls == [
    ("start", 0),
    ("loss", 1),
    ("step", 1, None),
    ("loss", 2),
    ("step", 2, 50.0),
    ("loss", 3),
    ("step", 3, None),
    ("end", 3),
  ]
  assert done == driver.Result((Value(2, 50.0),), 1.0, 0, 3, ["state"])
  assert steps.running.is_closed
  assert steps.num_ended == 1


def test_rounds_are_closed_after_an_error():
  steps = Rising(3)

  def fail(*_):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    driver.run(steps, [callbacks.LambdaCallback(on_step=fail)], None)
  assert steps.running.is_closed
  assert steps.num_ended == 0


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(
  "stop_after, last, best", [(None, 10, 10), (3, 10, 10), (2, 8, 4), (1, 6, 4)]
)
def test_run_ends_when_accuracy_stops_improving(
  tmp_path, saved, stop_after, last, best
):
  def run(keeps_best=False):
    told, steps = Told(), Rising()
    early = early_stopping.EarlyStopping(
      "accuracy", stop_after, keeps_best=keeps_best
    )
    checkpoint = checkpoints.Run(tmp_path / "run", "key", every=3)
    done = driver.run(steps, [early, told], checkpoint if saved else None)
    assert told.calls[-1] == ("end", last)
    return done, list(done.measured), early.best_step, told.calls

  expected = [
    Value(step, accuracy) for step, accuracy in ACCURACY.items() if step <= last
  ]
  done, measured, best_step, _ = run()
  assert measured == expected
  assert best_step == best
  assert done.server_state == last
  # A finished run stays finished, and repeats no step.
  done, measured, best_step, calls = run()
  assert (measured, best_step, done.server_state) == (expected, best, last)
  if saved:
    assert [call for call in calls if call[0] == "step"] == [
      ("step", each.step, each.accuracy) for each in expected
    ]
  done, measured, *_ = run(keeps_best=True)
  assert measured == [each for each in expected if each.step <= best]
  assert done.server_state == (last if best == last else None)


def test_run_that_was_stopped_ends_early_at_the_same_step(tmp_path):
  def run(stop_at=None):
    def stop(step, *_):
      if step == stop_at:
        raise KeyboardInterrupt

    early = early_stopping.EarlyStopping("accuracy", 2)
    return driver.run(
      Rising(),
      [early, callbacks.LambdaCallback(on_step=stop)],
      checkpoints.Run(tmp_path / "run", "key", every=1),
    )

  for stop_at in (3, 7):
    with pytest.raises(KeyboardInterrupt):
      run(stop_at)
  done = run()
  assert done.server_state == 8
  assert [each.step for each in done.measured] == [2, 4, 6, 8]


class Score(NamedTuple):
  """An evaluation with one metric."""

  name: str
  value: float

  def rows(self, step):
    yield {"round": step}, {self.name: self.value}


@pytest.mark.parametrize(
  "metric, higher_is_better, expected",
  [
    ("client_brier", None, 3),
    ("server_mean_ece", None, 3),
    ("loss", None, 3),
    ("validation_accuracy", None, 1),
    # A class that is called loss.
    ("client_recall_loss", None, 1),
    ("dread", False, 3),
    ("dread", True, 1),
  ],
)
def test_best_step_heeds_the_direction_of_the_metric(
  metric, higher_is_better, expected
):
  early = early_stopping.EarlyStopping(
    metric, 2, higher_is_better=higher_is_better
  )
  for step, value in enumerate([0.9, 0.8, 0.7, 0.8], 1):
    early.on_step(step, 0.0, Score(metric, value))
  assert early.best_step == expected


def test_nan_is_never_better_than_a_number():
  early = early_stopping.EarlyStopping("accuracy", 2)
  for step, accuracy in enumerate([np.nan, 1.0, np.nan, np.nan], 1):
    assert not early.should_stop()
    early.on_step(step, 0.0, Value(step, accuracy))
  assert early.should_stop()
  assert early.best_step == 2


@pytest.mark.parametrize(
  "call, message",
  [
    (lambda: early_stopping.EarlyStopping("loss", 0), "stop_after"),
    (
      lambda: early_stopping.EarlyStopping("dread"),
      "it is unknown whether higher values are better; pass higher_is_better",
    ),
    (lambda: callbacks.LambdaCallback(on_round=print), "on_round is not"),
    (lambda: callbacks.LambdaCallback(on_end=3), "on_end=3"),
    (lambda: driver.check(None, [print]), "callbacks="),
    (lambda: driver.check("folder", []), "checkpoint"),
  ],
)
def test_wrong_argument_is_named(call, message):
  with pytest.raises(ValueError, match=message):
    call()


class SignalInCollection(Rising):
  """Gets a signal in a callback of garbage collection, in its third step."""

  def __init__(self, number):
    super().__init__()
    self.number, self.done = number, []

  def step(self, running, step, measured):
    super().step(running, step, measured)
    if step == 3:
      gc.callbacks.append(self.interrupted)
      gc.collect()
      gc.callbacks.remove(self.interrupted)
    self.done.append(step)

  def interrupted(self, phase, _):
    if phase == "start":
      signal.raise_signal(self.number)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
  "number, error",
  [
    (signal.SIGINT, KeyboardInterrupt),
    (signal.SIGTERM, signals.Terminated),
  ],
)
def test_signal_that_garbage_collection_discards_ends_the_run(number, error):
  steps = SignalInCollection(number)
  before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
  with pytest.raises(KeyboardInterrupt) as found, signals.raised():
    try:
      driver.run(steps, [], None)
    finally:
      # A second signal ends the process at once.
      assert signal.getsignal(number) is signal.SIG_DFL
  assert found.type is error
  assert steps.done == [1, 2, 3]
  assert steps.running.is_closed
  after = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
  assert before == after
  signals.check()
