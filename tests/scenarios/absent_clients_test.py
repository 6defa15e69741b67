"""Clients without examples at some time steps or periods of your own data.

Client 0 has examples at all times, client 1 has a gap at time 2, and client 2
joins at time 2. Time 0 is before deployment, or the last training period.
"""

import numpy as np
import pytest

from tests.fixtures import trees
from tests.fixtures.refusals import refused
from tff_shift import algorithms
from tff_shift.algorithms import fed_3da
from tff_shift.algorithms import fix_lr
from tff_shift.data import examples as examples_lib
from tff_shift.data import from_python
from tff_shift.models.networks import mlp
from tff_shift.scenarios.dynamic_personalization import drift_detector
from tff_shift.scenarios.dynamic_personalization import (
  simulation as dynamic_personalization,
)
from tff_shift.scenarios.online_adaptation import (
  simulation as online_adaptation,
)
from tff_shift.shift import distances
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.usefixtures("context")

RUN_SEED = 3
# The number of examples of each client at the times 0 to 3.
SIZES = [[6, 4, 5, 4], [6, 4, 0, 5], [0, 0, 4, 1]]
PRESENT = [[0, 1], [0, 1], [0, 2], [0, 1, 2]]


def make_pair(size, seed):
  y = np.arange(size, dtype=np.int32) % 3
  noise = np.random.default_rng(seed).normal(size=(size, 3))
  return (2 * np.eye(3)[y] + noise).astype(np.float32), y


PAIRS = [
  [make_pair(size, [client, time]) for time, size in enumerate(sizes)]
  for client, sizes in enumerate(SIZES)
]
HELD_OUT = examples_lib.Examples(*make_pair(7, 99))


MODEL = mlp.build((3,), num_classes=3, width=5, head_width=4)


@pytest.mark.slow
class TestOnline:
  @pytest.fixture(scope="class")
  def algorithm(self):
    return algorithms.build(
      fix_lr,
      MODEL,
      fix_lr.HParams(
        learning_rate=0.5, batch_size=4, local_epochs=1, head_epochs=1
      ),
    )

  def start(self, algorithm, held_out=HELD_OUT, **options):
    initial, streams = from_python.from_arrays(
      "online_adaptation", [own[0] for own in PAIRS], [own[1:] for own in PAIRS]
    )
    deployed = online_adaptation.Deployment(
      initial, np.eye(3, dtype=np.float32), held_out
    )
    return online_adaptation.Adaptation(
      algorithm, streams, deployed, run_seed=RUN_SEED, **options
    )

  def accuracy(self, run, client, timestep):
    """The accuracy of one client alone, in percent."""
    states = run.rounds.states.take([client])
    x, y = PAIRS[client][timestep]
    run.rounds.present = [client]
    labelled = online_adaptation.client_data.to_predict(x, y, [len(y)])
    means = run.rounds.algorithm.evaluate_clients(
      run.rounds.server_state, states, [run.data(timestep)[client]], [labelled]
    )
    return 100 * float(means["accuracy"][0])

  def test_absent_clients_stay_untouched_and_do_not_count(self, algorithm):
    told = []

    def sample(known):
      told.append(known.present.tolist())
      return known.present

    run = self.start(algorithm, sampler=sample, rounds_per_step=2)
    # A client that has not joined has no state yet.
    first = run.step(1)
    assert sorted(run.rounds.states.in_memory) == [0, 1]
    before = trees.bits(run.rounds.states.take([0, 1]))
    second = run.step(2)
    after = trees.bits(run.rounds.states.take([0, 1]))
    half = len(before) // 2
    assert before[half:] == after[half:]
    assert before[:half] != after[:half]
    third = run.step(3)
    assert told == [each for each in PRESENT[1:] for _ in range(2)]
    for step in (first, second, third):
      present = PRESENT[step.timestep]
      is_nan = np.isnan(step.learning_rates)
      assert np.flatnonzero(~is_nan).tolist() == present
      assert np.isnan(step.estimates).all(axis=1).tolist() == is_nan.tolist()
      measured = step.measured()
      assert "omega" not in measured
      assert measured["mean_learning_rate"] == 0.5
    alone = [self.accuracy(run, client, 3) for client in PRESENT[3]]
    assert third.after["accuracy"] == pytest.approx(np.mean(alone))
    # Client 2 has one example at this time, of ten.
    counts = [round(a * SIZES[c][3] / 100) for c, a in enumerate(alone)]
    assert third.after["pooled_accuracy"] == pytest.approx(10 * sum(counts))

  def test_client_that_joins_later_has_the_examples_of_the_server(
    self, algorithm
  ):
    run = self.start(algorithm)
    data = run.data(2)[2]
    np.testing.assert_array_equal(data.x, HELD_OUT.x)
    np.testing.assert_array_equal(data.y, HELD_OUT.y)
    np.testing.assert_array_equal(data.stream_x, PAIRS[2][2][0])
    np.testing.assert_array_equal(run.data(2)[0].x, PAIRS[0][0][0])
    with refused(r"client 2 has no examples: held_out"):
      self.start(algorithm, held_out=None)
    # Saved models have the last data of a client.
    latest = run.latest_data(2)
    assert [int(each.timestep) for each in latest] == [2, 1, 2]
    np.testing.assert_array_equal(latest[1].stream_x, PAIRS[1][1][0])


def represent(x):
  return np.concatenate([x.mean(axis=0), x.std(axis=0)]).astype(np.float32)


@pytest.mark.slow
class TestDynamic:
  @pytest.fixture(scope="class")
  def trained(self):
    """Two rounds, of which client 1 lacks the second, and client 2 both."""
    algorithm = algorithms.build(
      fed_3da,
      MODEL,
      fed_3da.HParams(
        representation_size=6, hidden_width=8, num_hidden=1, batch_size=4
      ),
      num_evaluation_domains=3,
    )
    drawn = from_python.from_arrays(
      "dynamic_personalization",
      [
        [own[0], own[2 if client else 1]]
        for client, own in enumerate(PAIRS[:2])
      ]
      + [[PAIRS[2][0]] * 2],
    )
    seen = []

    def sample(known):
      seen.append(known.present.tolist())
      return known.present

    periods = [
      dynamic_personalization.training_data(
        algorithm, drawn, period, represent, RUN_SEED
      )
      for period in range(2)
    ]
    present = [
      [client for client, each in enumerate(data) if len(each.y)]
      for data in periods
    ]
    running = rounds.Rounds(
      algorithm,
      periods[0],
      present=present[0],
      run_seed=RUN_SEED,
      sampler=sample,
    )
    for running.present, running.data in zip(present, periods, strict=True):
      running.step()
    return seen, running

  @pytest.fixture(scope="class")
  def stream(self):
    return dynamic_personalization.measure_stream(
      from_python.from_arrays("dynamic_personalization", PAIRS),
      3,
      drift_detector.Instruments(
        represent, lambda x: x, distances.distance, threshold=0.0
      ),
    )

  def test_distance_is_to_the_last_period_with_examples(self, stream):
    assert stream.drifted is None

    def between(client, now, before):
      return distances.distance(PAIRS[client][now][0], PAIRS[client][before][0])

    np.testing.assert_array_equal(
      stream.distances,
      [
        [between(0, 1, 0), between(1, 1, 0), np.nan],
        [between(0, 2, 1), np.nan, np.nan],
        # Client 2 has one example in period 3.
        [between(0, 3, 2), between(1, 3, 1), np.nan],
      ],
    )

  def test_absent_clients_are_not_measured_and_send_nothing(
    self, trained, stream
  ):
    seen, running = trained
    # Nor do they train.
    assert seen == [[0, 1], [0]]
    assert sorted(running.states.in_memory) == [0, 1]
    told = []
    found = dynamic_personalization.infer(
      running,
      stream,
      represent,
      threshold=0.0,
      on_period=lambda period, accuracy: told.append(accuracy),
    )
    is_present = [[c in PRESENT[p] for c in range(3)] for p in (1, 2, 3)]
    assert found.is_present.tolist() == is_present
    has_distance = ~np.isnan(stream.distances)
    assert found.detected.tolist() == has_distance.tolist()
    assert found.requested.tolist() == has_distance.tolist()
    np.testing.assert_array_equal(told, found.accuracy)
    second = found.of_period(2)
    both = found.accuracy[1, [0, 2]]
    assert second["accuracy"] == pytest.approx(both.mean())
    assert second["distance"] == stream.distances[1, 0]
    assert (second["detected_share"], second["requests"]) == (100, 1)
    assert "drifted_share" not in second

  def test_client_that_joins_predicts_with_the_model_of_its_first_period(
    self, trained, stream, compile_in_graph
  ):
    _, running = trained
    found = dynamic_personalization.infer(
      running, stream, represent, threshold=np.inf
    )
    assert not found.requested.any()
    weights = running.algorithm.request(
      running.server_state, represent(PAIRS[2][2][0])
    )
    for period in (2, 3):
      x, y = PAIRS[2][period]
      logits = compile_in_graph(MODEL.predict, weights, x)(weights, x)
      expected = 100 * np.mean(np.argmax(logits, axis=1) == y)
      assert found.accuracy[period - 1, 2] == pytest.approx(expected)


@pytest.mark.parametrize(
  "scenario", ["online_adaptation", "dynamic_personalization"]
)
def test_times_without_any_client_are_refused(scenario):
  pairs = [[*own[:2], make_pair(0, 0)] for own in PAIRS]
  arrays = [pairs]
  if scenario == "online_adaptation":
    arrays = [[own[0] for own in pairs], [own[1:] for own in pairs]]
  with refused(r" 2: no client has an example of it$"):
    from_python.from_arrays(scenario, *arrays)
