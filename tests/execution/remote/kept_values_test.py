"""What is sent again and does not change is sent to a worker only once."""

import gc
import os
import signal

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.execution import local
from tff_shift.execution import worker_executors

pytestmark = [pytest.mark.cpp, pytest.mark.slow]

_SIZE = 2000
_ARRAYS = tff.FederatedType((np.float32, [_SIZE]), tff.CLIENTS)


@tff.federated_computation(
  _ARRAYS, tff.FederatedType((np.float32, [_SIZE]), tff.SERVER)
)
def _mean_plus(data, weights):
  """The mean of the clients' arrays, added to the server's."""
  add = tff.tensorflow.computation(
    lambda one, other: one + other, *[(np.float32, [_SIZE])] * 2
  )
  return tff.federated_map(add, (tff.federated_mean(data), weights))


@pytest.fixture
def data():
  generator = np.random.default_rng(0)
  return list(generator.normal(size=(4, _SIZE)).astype(np.float32))


@pytest.fixture
def sent(monkeypatch):
  """The bytes of each value that is sent to a worker."""
  sizes = []
  create_value = worker_executors._WorkerStub.create_value

  def create_and_note(self, request):
    sizes.append(request.ByteSize())
    return create_value(self, request)

  monkeypatch.setattr(
    worker_executors._WorkerStub, "create_value", create_and_note
  )
  return sizes


def _weights(number):
  return np.full(_SIZE, number, np.float32)


def _check(data, number):
  np.testing.assert_allclose(
    _mean_plus(data, _weights(number)),
    np.mean(data, axis=0) + number,
    atol=1e-6,
  )


class TestRemote:
  def test_from_the_third_round_on_only_what_changes_is_sent(
    self, workers, use, data, sent
  ):
    bytes_of_rounds = []
    with use(workers[:2]):
      for number in range(5):
        sent.clear()
        _check(data, number)
        bytes_of_rounds.append(sum(sent))
    first, second, *others = bytes_of_rounds
    array = 4 * _SIZE
    # Each worker gets the weights, and the first one again to add them. Data,
    # and partial sums that are equal as they are of equal data, are kept.
    changing = 3 * array
    assert first > changing + 6 * array
    # The graphs are not sent a second time, arrays are.
    assert changing + 6 * array < second < first
    for each in others:
      assert changing < each < 1.05 * changing

  def test_array_that_is_changed_in_place_is_sent(self, workers, use, data):
    with use(workers[:2]):
      for number in range(3):
        _check(data, number)
      # Not one of those that the sample has.
      data[0][1] += 1000
      _check(data, 3)

  @pytest.mark.parametrize(
    "start_worker",
    ["worker_binary", pytest.param("in_process", marks=pytest.mark.long)],
    indirect=True,
  )
  def test_worker_that_is_started_anew_gets_everything(
    self, start_worker, use, data, sent
  ):
    worker = start_worker()
    with worker, use([worker], worker_timeout=60.0):
      for number in range(3):
        _check(data, number)
      os.kill(worker.pid, signal.SIGKILL)
      worker.stop()
      with start_worker(port=worker.port):
        sent.clear()
        _check(data, 3)
        assert sum(sent) > 5 * 4 * _SIZE


def test_local_executor_gets_data_once_too(data, sent):
  with local.local_context():
    for number in range(4):
      sent.clear()
      _check(data, number)
  assert sum(sent) < 1.2 * 4 * _SIZE


class TestKeptValues:
  TYPE = tff.TensorType(np.float32, [_SIZE])

  def keys(self, value, times=2):
    kept = worker_executors._KeptValues()
    return [kept.key(0, value, self.TYPE) for _ in range(times)]

  def test_second_sight_gives_a_key(self):
    first, second = self.keys(_weights(1))
    assert first is None
    assert second[1] == 4 * _SIZE

  @pytest.mark.parametrize(
    "value",
    [
      np.ones(10, np.float32),
      np.array(["text"] * _SIZE),
      [np.ones(_SIZE, np.float32), "text"],
      tf.data.Dataset.range(3),
      np.lib.stride_tricks.as_strided(
        np.ones(1), (worker_executors._KEPT_BYTES,), (0,)
      ),
    ],
  )
  def test_what_is_small_or_large_or_no_numbers_has_none(self, value):
    assert self.keys(value) == [None, None]

  def test_shape_type_boundaries_and_names_belong_to_the_key(self):
    kept = worker_executors._KeptValues()
    rows = np.arange(_SIZE, dtype=np.float32)
    named = {"a": rows, "b": rows}, {"b": rows, "a": rows}
    values = [
      np.zeros(_SIZE, np.float32),
      np.zeros(_SIZE, np.int32),
      np.zeros((2, _SIZE // 2), np.float32),
      [np.zeros(_SIZE // 2, np.float32)] * 2,
      [[*rows[:600]], [*rows[600:]]],
      [[*rows[:100]], [*rows[100:]]],
      *named,
    ]
    for value in values:
      assert kept.key(0, value, self.TYPE) is None
    keys = [kept.key(0, value, self.TYPE)[0] for value in values]
    assert len(set(keys)) == len(values)
    other_type = tff.TensorType(np.float32, [None])
    assert kept.key(0, values[0], other_type) is None
    # Equal names in equal order are the same structure.
    for fields, key in zip(named, keys[-2:], strict=True):
      struct = tff.structure.Struct(list(fields.items()))
      assert kept.key(0, struct, self.TYPE)[0] == key

  def test_arrays_without_elements_have_a_key(self):
    value = [np.zeros(_SIZE), np.zeros((0, 400)), np.zeros((3, 0))]
    first, second = self.keys(value)
    assert first is None
    assert second[1] == 8 * _SIZE

  def test_what_an_executor_kept_goes_with_it(self):
    kept = worker_executors._KeptValues()
    for executor in (0, 1):
      kept.key(executor, _weights(1), self.TYPE)
      key, *others = kept.key(executor, _weights(1), self.TYPE)
      kept.put(key, _weights(1), f"of {executor}", *others)
    kept.forget(0)
    assert kept.key(0, _weights(1), self.TYPE) is None
    assert kept.get(key, _weights(1), 1) == "of 1"

  def test_the_oldest_gives_way(self, monkeypatch):
    monkeypatch.setattr(worker_executors, "_KEPT_BYTES", 2.5 * 4 * _SIZE)
    kept = worker_executors._KeptValues()
    for number in range(3):
      kept.put(number, _weights(0), f"value {number}", 4 * _SIZE, np.inf)
    assert kept.get(0, None, 1) is None
    assert kept.get(2, None, 1) == "value 2"

  def test_what_does_not_recur_goes_and_what_does_stays(self):
    kept = worker_executors._KeptValues()

    def send(number):
      known = kept.key(0, _weights(number), self.TYPE)
      if known is None:
        return False
      key, size, lasts = known
      if kept.get(key, None, lasts) is not None:
        return True
      kept.put(key, None, f"value {number}", size, lasts)
      return False

    data = range(-5, 0)
    for number in range(100):
      # Weights recur at once, for the server, and not in later rounds.
      known = [send(each) for each in (number, *data, number)]
      assert known == [False, *[number > 1] * 5, False]
    # An interval of the weights is 6 values, and a round has 7.
    assert len(kept._values) <= 5 + 7

  def test_intervals_by_hand(self):
    kept = worker_executors._KeptValues()

    def send_after(others):
      for number in range(others):
        kept.key(0, _weights(number), self.TYPE)
      return kept.key(0, _weights(-1), self.TYPE)

    assert send_after(0) is None
    key, size, lasts = send_after(0)
    assert lasts == 8
    kept.put(key, None, "value", size, lasts)
    *_, lasts = send_after(6)
    assert lasts == 56
    assert kept.get(key, None, lasts) == "value"
    # A shorter interval does not count.
    *_, lasts = send_after(0)
    assert kept.get(key, None, lasts) == "value"
    *_, lasts = send_after(54)
    assert kept.get(key, None, lasts) == "value"
    *_, lasts = send_after(55 * 8 - 1)
    assert kept.get(key, None, lasts) is None

  def test_computation_that_is_gone_is_not_another_one(self):
    kept = worker_executors._KeptValues()
    one, other = (tff.tensorflow.computation(lambda: 1) for _ in range(2))
    kept.put("key", one, "value", 1, np.inf)
    assert kept.get("key", one, np.inf) == "value"
    assert kept.get("key", other, np.inf) is None
    del one
    gc.collect()
    assert "key" not in kept._values
