"""Tests of training and use in periods: what is measured, and what is not seen.

Examples are points around a centre for each class. An r is the mean and the
deviation of each feature.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import trees
from tests.fixtures.refusals import refused
from tff_shift import algorithms
from tff_shift.algorithms import fed_3da
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_avg_ft
from tff_shift.algorithms import local
from tff_shift.algorithms import p_fed_hn
from tff_shift.data import client_dataset
from tff_shift.data import examples as examples_lib
from tff_shift.data.shifts import (
  dynamic_personalization as dynamic_personalization_data,
)
from tff_shift.learning import periods as period_data
from tff_shift.models.networks import mlp
from tff_shift.scenarios.dynamic_personalization import deployment
from tff_shift.scenarios.dynamic_personalization import drift_detector
from tff_shift.scenarios.dynamic_personalization import (
  simulation as dynamic_personalization,
)
from tff_shift.shift import choices
from tff_shift.shift import distances
from tff_shift.simulation.engine import callbacks
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.usefixtures("context")

NUM_CLIENTS = 3
PERIOD_SIZE = 20
NUM_CLASSES = 4
RUN_SEED = 5

META = {"hidden_width": 8, "num_hidden": 1, "meta_learning_rate": 0.1}
LOCAL = {"local_epochs": 1, "batch_size": 10, "learning_rate": 0.1}
HPARAMS = {
  fed_3da: fed_3da.HParams(representation_size=6, **META, **LOCAL),
  p_fed_hn: p_fed_hn.HParams(**META, **LOCAL),
  fed_avg: fed_avg.HParams(**LOCAL),
  local: local.HParams(**LOCAL),
}
# Its functions of tensors are its own, and not its place in a run.
P_FED_HN = pytest.param(p_fed_hn, marks=pytest.mark.every_algorithm)
ALL = pytest.mark.parametrize(
  "module",
  [
    fed_3da,
    local,
    pytest.param(fed_avg, marks=pytest.mark.slow),
    P_FED_HN,
  ],
  ids=lambda module: module.__name__.rpartition(".")[2],
)


def make_pool(num_examples, seed) -> examples_lib.Examples:
  generator = np.random.default_rng(seed)
  y = np.arange(num_examples, dtype=np.int32) % NUM_CLASSES
  x = 2 * np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0], [1, 1, 1]])[y]
  x = x + generator.normal(size=x.shape)
  return examples_lib.Examples(x.astype(np.float32), y)


def make_periods(
  distribution, seed=2, kind=dynamic_personalization_data.Periods, **options
):
  options = {"num_clients": NUM_CLIENTS, "seed": RUN_SEED, **options}
  return kind(
    make_pool(400, seed),
    NUM_CLASSES,
    distribution,
    period_size=PERIOD_SIZE,
    **options,
  )


def represent(x):
  return np.concatenate([x.mean(axis=0), x.std(axis=0)]).astype(np.float32)


INSTRUMENTS = drift_detector.Instruments(
  represent, lambda x: x, distances.distance, threshold=2.0
)
TRAINING = make_periods(dynamic_personalization_data.DISTRIBUTIONS, seed=1)


batches = dynamic_personalization.batches


def training_data(algorithm, period, drawn=TRAINING):
  return dynamic_personalization.training_data(
    algorithm, drawn, period, represent, RUN_SEED
  )


def train_in_periods(algorithm, num_rounds=3, **options):
  """Returns the rounds after training, one period per round."""
  data = training_data(algorithm, 0)
  running = rounds.Rounds(algorithm, data, run_seed=RUN_SEED, **options)
  for period in range(num_rounds):
    running.data = training_data(algorithm, period)
    running.step()
  return running


MODEL = mlp.build((3,), num_classes=NUM_CLASSES, width=6, head_width=5)


@pytest.fixture(scope="module")
def train():
  """Returns `train(module)`: three rounds, done once for all tests."""
  done = {}

  def train_once(module):
    if module not in done:
      algorithm = algorithms.build(
        module, MODEL, HPARAMS[module], num_evaluation_domains=NUM_CLIENTS
      )
      losses = []
      running = train_in_periods(
        algorithm, on_loss=lambda *row: losses.append(row)
      )
      done[module] = running, losses
    return done[module]

  return train_once


def make_stream():
  """Six periods; the distribution changes with the second, fourth, sixth."""
  drawn = make_periods("0.8", periods_per_distribution=2)
  return dynamic_personalization.measure_stream(drawn, 6, INSTRUMENTS)


STREAM = make_stream()


@pytest.fixture(scope="module")
def client_accuracy(compile_in_graph):
  """Returns `accuracy(weights, examples)`, in percent, without TFF."""
  predict = compile_in_graph(
    MODEL.predict,
    MODEL.initial_weights(np.zeros(2, np.int32)),
    tf.TensorSpec([PERIOD_SIZE, 3], tf.float32),
  )

  def accuracy(weights, examples):
    logits = predict(weights, examples.x)
    return 100 * float(np.mean(np.argmax(logits, axis=1) == examples.y))

  return accuracy


class ShortPeriods(dynamic_personalization_data.Periods):
  """Periods of which a batch lacks a class."""

  def batch(self, client, period):
    x, y = super().batch(client, period)
    return examples_lib.Examples(x, y[client == 1 :])


class TestBadData:
  REFUSAL = r"^y of client 1: the shape must be \[\d+\], a class for each"

  @pytest.mark.parametrize(
    "change, message",
    [
      (lambda x, y: (x, y), "client 1, period 2: Examples(x, y) wanted, got"),
      (
        lambda x, y: examples_lib.Examples(x * np.nan, y),
        "x of client 1, period 2: all numbers must be finite",
      ),
    ],
  )
  def test_period_of_a_stream_is_refused(self, change, message, refusal):
    class ChangedPeriods(dynamic_personalization_data.Periods):
      def batch(self, client, period):
        found = super().batch(client, period)
        return change(*found) if (client, period) == (1, 2) else found

    drawn = make_periods("iid", kind=ChangedPeriods)
    assert refusal(
      dynamic_personalization.measure_stream, drawn, 3, INSTRUMENTS
    ).startswith(message)

  @pytest.mark.slow
  def test_wrong_examples_name_the_client_in_training_and_in_use(self, train):
    running, _ = train(fed_3da)
    short = make_periods("iid", kind=ShortPeriods)
    examples = batches(short, 0)
    with refused(self.REFUSAL):
      training_data(running.algorithm, period=0, drawn=short)
    with refused(self.REFUSAL):
      dynamic_personalization.validate(running, short, represent)
    with refused(self.REFUSAL):
      deployment.Clients(running, represent).request(
        examples, np.ones(len(examples), bool)
      )

  def test_pool_of_two_lengths_is_refused(self):
    pool = make_pool(9, 0)
    with refused(r"9 examples and 8 classes"):
      dynamic_personalization_data.Periods(
        pool._replace(y=pool.y[1:]),
        NUM_CLASSES,
        "iid",
        num_clients=2,
        period_size=2,
        seed=0,
      )


@pytest.mark.slow
@ALL
def test_training_data_are_the_examples_of_the_period(train, module):
  """And an r, for the algorithm that takes it."""
  algorithm = train(module)[0].algorithm
  data = training_data(algorithm, 7)
  assert len(data) == NUM_CLIENTS
  for client, each in enumerate(data):
    trees.assert_equal((each.x, each.y), tuple(TRAINING.batch(client, 7)))
    assert each.client_id == client
    assert each.domain_sizes.tolist() == [PERIOD_SIZE]
  first, second, _ = data
  assert not np.array_equal(first.seed, second.seed)
  takes_representation = module is fed_3da
  if takes_representation:
    assert isinstance(first, period_data.PeriodData)
    np.testing.assert_array_equal(first.representation, represent(first.x))
  else:
    assert isinstance(first, client_dataset.ClientDataset)
  assert dynamic_personalization.takes_representation(algorithm) == (
    takes_representation
  )


@pytest.mark.slow
class TestTrain:
  @ALL
  def test_each_round_is_a_period_of_its_own(self, train, module):
    running, losses = train(module)
    assert [round_num for round_num, _ in losses] == [1, 2, 3]
    assert np.isfinite([loss for _, loss in losses]).all()
    np.testing.assert_array_equal(running.data[1].x, TRAINING.batch(1, 2).x)

  def test_loss_is_that_of_the_data_of_the_round(self, train):
    """Two rounds by hand, with the algorithm's own phase."""
    running, losses = train(fed_avg)
    (phase,) = running.algorithm.phases
    state = train_in_periods(running.algorithm, 1).server_state
    data = training_data(running.algorithm, 1)
    _, _, metrics = phase(state, [()] * NUM_CLIENTS, data)
    assert float(metrics["loss"]) == losses[1][1]

  def test_who_does_not_take_part_stays(self, train):
    algorithm = train(local)[0].algorithm
    one = train_in_periods(algorithm, 1, participation=0.3)
    before = algorithm.initialize_client(
      one.server_state, [each.seed for each in one.data]
    )
    changed = [
      trees.bits(state) != trees.bits(old)
      for state, old in zip(one.client_states, before, strict=True)
    ]
    assert sum(changed) == 1


class TestClients:
  @pytest.mark.slow
  @ALL
  def test_accuracies_are_those_of_each_client_alone(self, train, module):
    running, _ = train(module)
    examples = batches(make_periods("0.5+0.5"), 3)
    expected = []
    sizes = np.array([PERIOD_SIZE, 0, 0], np.int32)
    for client, each in enumerate(examples):
      metrics = running.algorithm.evaluate_clients(
        running.server_state,
        [running.client_states[client]],
        [running.data[client]],
        [
          client_dataset.ClientDataset.from_arrays(
            each.x, each.y, sizes, np.zeros(2, np.int32)
          )
        ],
      )
      expected.append(100 * float(metrics["accuracy"][0]))
    found = deployment.Clients(running, represent).measure(examples)["accuracy"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float64

  def test_only_who_asks_is_sent_another_model(self, train, client_accuracy):
    running, _ = train(fed_3da)
    clients = deployment.Clients(running, represent)
    examples = batches(make_periods("0.9"), 0)
    before = clients.measure(examples)["accuracy"]
    answered = clients.request(examples, np.array([False, True, False]))
    assert answered.tolist() == [False, True, False]
    after = clients.measure(examples)["accuracy"]
    weights = running.algorithm.request(
      running.server_state, represent(examples[1].x)
    )
    expected = client_accuracy(weights, examples[1])
    np.testing.assert_allclose(
      after, [before[0], expected, before[2]], rtol=1e-6
    )


def test_stream_has_the_distances_and_drifts_of_each_period():
  drawn = STREAM.drawn
  assert STREAM.distances.shape == STREAM.drifted.shape == (6, NUM_CLIENTS)
  for client in range(NUM_CLIENTS):
    for period in range(1, 7):
      now, before = drawn.batch(client, period), drawn.batch(client, period - 1)
      place = period - 1, client
      assert STREAM.distances[place] == distances.distance(now.x, before.x)
      assert STREAM.drifted[place] == drawn.is_drift(client, period)
  assert not STREAM.drifted[::2].any()
  assert STREAM.drifted.any()
  # Features are taken first.
  seen = []
  doubled = INSTRUMENTS._replace(
    features=lambda x: 2 * x, distance=lambda *pair: seen.append(pair) or 1
  )
  drawn = make_periods("iid")
  found = dynamic_personalization.measure_stream(drawn, 1, doubled)
  np.testing.assert_array_equal(found.distances, [[1] * NUM_CLIENTS])
  for x, period in zip(seen[2], (1, 0), strict=True):
    np.testing.assert_array_equal(x, 2 * drawn.batch(2, period).x)


class TestInfer:
  def infer(self, train, stream, module=fed_3da, **options):
    options = {"threshold": 2.0, **options}
    return dynamic_personalization.infer(
      train(module)[0], stream, represent, **options
    )

  def test_detection_is_a_distance_above_the_threshold(self, train):
    threshold = float(np.median(STREAM.distances))
    found = self.infer(train, STREAM, threshold=threshold)
    np.testing.assert_array_equal(found.detected, STREAM.distances > threshold)
    np.testing.assert_array_equal(found.requested, found.detected)
    np.testing.assert_array_equal(found.distances, STREAM.distances)
    np.testing.assert_array_equal(found.drifted, STREAM.drifted)
    # The distance that is the threshold is no drift.
    edge = self.infer(train, STREAM, threshold=STREAM.distances[3, 1])
    assert not edge.detected[3, 1]

  @pytest.fixture(scope="class")
  def accuracy_with(self, train, client_accuracy):
    """Returns the accuracy of client 0 in a period, with the model for another.

    It is a function of the two periods.
    """
    running, _ = train(fed_3da)

    def accuracy(asked, period):
      weights = running.algorithm.request(
        running.server_state, represent(STREAM.drawn.batch(0, asked).x)
      )
      return client_accuracy(weights, STREAM.drawn.batch(0, period))

    return accuracy

  @pytest.mark.parametrize(
    "apply_update, threshold, late",
    [("next", 0, 1), ("current", 0, 0), ("next", np.inf, None)],
  )
  def test_model_is_that_of_the_last_request_or_the_first(
    self, train, accuracy_with, apply_update, threshold, late
  ):
    found = self.infer(
      train, STREAM, threshold=threshold, apply_update=apply_update
    )
    np.testing.assert_array_equal(found.requested, late is not None)
    for period in range(1, 7):
      asked = 0 if late is None else period - late
      assert found.accuracy[period - 1, 0] == pytest.approx(
        accuracy_with(asked, period), rel=1e-6
      )

  @pytest.mark.slow
  @pytest.mark.parametrize("module", [P_FED_HN, fed_avg, local])
  def test_algorithms_without_an_answer_never_change(self, train, module):
    trained = deployment.Clients(train(module)[0], None)
    expected = [
      trained.measure(batches(STREAM.drawn, period))["accuracy"]
      for period in range(1, 7)
    ]
    for apply_update in choices.APPLY_UPDATES:
      found = self.infer(
        train, STREAM, module, threshold=0, apply_update=apply_update
      )
      assert found.detected.all() and not found.requested.any()
      np.testing.assert_array_equal(found.accuracy, expected)

  def test_states_after_training_stay(self, train):
    running, _ = train(fed_3da)
    before = trees.bits(running.client_states)
    first = self.infer(train, STREAM, threshold=0)
    assert trees.bits(running.client_states) == before
    again = self.infer(train, STREAM, threshold=0)
    np.testing.assert_array_equal(first.accuracy, again.accuracy)

  def test_labels_have_no_part_in_detection_and_models(self, train):
    class Mislabelled(dynamic_personalization_data.Periods):
      def batch(self, client, period):
        x, y = super().batch(client, period)
        return examples_lib.Examples(x, (y + 1) % NUM_CLASSES)

    other = dynamic_personalization.measure_stream(
      make_periods("0.8", kind=Mislabelled, periods_per_distribution=2),
      6,
      INSTRUMENTS,
    )
    np.testing.assert_array_equal(other.distances, STREAM.distances)
    found, moved = (
      self.infer(train, each, threshold=0) for each in (STREAM, other)
    )
    np.testing.assert_array_equal(found.requested, moved.requested)
    assert (found.accuracy != moved.accuracy).any()
    # No example has the right class twice.
    assert (found.accuracy + moved.accuracy <= 100 + 1e-4).all()


@pytest.mark.slow
@pytest.mark.parametrize("module", [fed_avg, fed_3da])
def test_validation_is_the_mean_over_clients_and_iid_periods(train, module):
  running, _ = train(module)
  drawn = make_periods("iid")
  clients = deployment.Clients(running, represent)
  if module is fed_3da:
    # Clients ask for their model first.
    clients.request(batches(drawn, 0), np.ones(NUM_CLIENTS, bool))
  expected = np.mean(
    [
      clients.measure(batches(drawn, period))["accuracy"]
      for period in range(1, 11)
    ]
  )
  assert dynamic_personalization.validate(
    running, drawn, represent
  ) == pytest.approx(expected)


class Calls(callbacks.Callback):
  """Notes steps and periods, losses and the end; stops a run in a call."""

  def __init__(self, stop=None):
    self.calls, self.losses, self.ended = [], [], []
    self._stop = stop

  def note(self, call):
    self.calls.append(call)
    if call == self._stop:
      raise KeyboardInterrupt

  def on_step(self, step, _, deployed):
    self.note(deployed.distribution if deployed else step)

  def on_period(self, _, name, period, __):
    self.note((period, name))

  def on_loss(self, round_num, _):
    self.losses.append(round_num)

  def on_end(self, running):
    self.ended.append(running.data[0].x.tobytes())


class TestRun:
  """Three rounds and two streams: five steps, of which 2, 4 and 5 are saved."""

  @pytest.fixture(scope="class")
  def met(self):
    drawn = make_periods("iid")
    return {
      "0.8": STREAM,
      "iid": dynamic_personalization.measure_stream(drawn, 2, INSTRUMENTS),
    }

  @pytest.fixture(scope="class")
  def fine_tuned(self):
    """What its clients predict depends on their last data of training."""
    return algorithms.build(
      fed_avg_ft,
      MODEL,
      fed_avg_ft.HParams(fine_tuning_epochs=1, **LOCAL),
      num_evaluation_domains=NUM_CLIENTS,
    )

  def run(self, algorithm, met, **options):
    return dynamic_personalization.run(
      algorithm,
      TRAINING,
      make_periods("iid", seed=3),
      met,
      represent,
      **{"num_rounds": 3} | options,
      run_seed=RUN_SEED,
      threshold=1.0,
      participation=0.7,
      apply_update="current",
    )

  def bits(self, result):
    return trees.bits((result.validation_accuracy, dict(result.inferences)))

  def test_it_is_training_validation_and_use(self, train, met):
    algorithm, calls = train(fed_3da)[0].algorithm, []
    found = self.run(
      algorithm,
      met,
      callbacks=[
        callbacks.LambdaCallback(
          on_step=lambda *row: calls.append(row),
          on_period=lambda *row: calls.append(row[1:3]),
        )
      ],
    )
    losses = []
    running = train_in_periods(
      algorithm, participation=0.7, on_loss=lambda *row: losses.append(row)
    )
    used = {
      name: dynamic_personalization.infer(
        running, each, represent, threshold=1.0, apply_update="current"
      )
      for name, each in met.items()
    }
    assert self.bits(found) == trees.bits(
      (
        dynamic_personalization.validate(
          running, make_periods("iid", seed=3), represent
        ),
        used,
      )
    )

    def used_of(name, step):
      inference = found.inferences[name]
      return dynamic_personalization.Deployed(
        name,
        found.validation_accuracy,
        inference,
        inference.clients(name, step),
      )

    assert calls == [
      *[(*row, None) for row in losses],
      *[("0.8", period) for period in range(1, 7)],
      (4, None, used_of("0.8", 4)),
      ("iid", 1),
      ("iid", 2),
      (5, None, used_of("iid", 5)),
    ]
    assert 0 < found.seconds_per_round < 60

  @pytest.mark.slow
  @pytest.mark.parametrize("has_answer", [True, False])
  def test_run_that_was_stopped_ends_as_one_that_was_not(
    self, train, fine_tuned, met, tmp_path, has_answer
  ):
    algorithm = train(fed_3da)[0].algorithm if has_answer else fine_tuned
    whole = self.run(algorithm, met)

    def run(told):
      return self.run(
        algorithm,
        met,
        callbacks=[told],
        checkpoint=checkpoints.Run(tmp_path / "run", "key", every=2),
      )

    first = [(period, "0.8") for period in range(1, 7)]
    for stop, before in (
      (3, [1, 2, 3]),
      ((1, "iid"), [3, *first, "0.8", (1, "iid")]),
    ):
      told = Calls(stop)
      with pytest.raises(KeyboardInterrupt):
        run(told)
      assert told.calls == before
    seconds = set()
    # Losses and the stream of before are told again, but not run again.
    for expected in (["0.8", (1, "iid"), (2, "iid"), "iid"], ["0.8", "iid"]):
      told = Calls()
      result = run(told)
      assert told.losses == [1, 2, 3]
      assert told.calls == expected
      assert self.bits(result) == self.bits(whole)
      # The data of the last round of training, also where none was left to do.
      assert told.ended == [TRAINING.batch(0, 2).x.tobytes()]
      seconds.add(result.seconds_per_round)
    assert len(seconds) == 1

  @pytest.mark.slow
  def test_run_that_takes_more_rounds_ends_as_one_that_had_them(
    self, train, met, tmp_path
  ):
    algorithm = train(fed_3da)[0].algorithm

    def run(num_rounds, met=met, told=None):
      return self.run(
        algorithm,
        met,
        num_rounds=num_rounds,
        callbacks=[told or Calls()],
        checkpoint=checkpoints.Run(tmp_path / "run", "key", every=1),
      )

    # Four steps, of which the last ones are checkpoints 3 and 4.
    run(2)
    with pytest.raises(KeyboardInterrupt):
      run(3, told=Calls(stop=3))
    told = Calls()
    found = run(3, told=told)
    streams = [call for call in told.calls if isinstance(call, (int, str))]
    assert streams == [3, "0.8", "iid"]
    assert self.bits(found) == self.bits(self.run(algorithm, met))
    # Another round less has as many steps as there are with a stream more.
    with refused("saved after 3 rounds, more than the 2 requested"):
      run(2, met | {"0.5": met["iid"]})
