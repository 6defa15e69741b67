"""The driver of clients that answer queries, by hand and whole."""

import functools

import numpy as np
import pytest

from tests.fixtures.refusals import refused
from tests.fixtures.runs import Record
from tests.fixtures.runs import stop_and_repeat
from tff_shift import algorithms
from tff_shift.algorithms import fed_drm
from tff_shift.data import examples
from tff_shift.learning import guidance as learned
from tff_shift.models import guided_model
from tff_shift.models.networks import mlp
from tff_shift.scenarios.guidance import queries
from tff_shift.scenarios.guidance import simulation as guidance
from tff_shift.simulation.engine import checkpoints
from tff_shift.testing import forms


def make_examples(x, y):
  return examples.Examples(
    np.array(x, np.float32)[:, np.newaxis], np.array(y, np.int32)
  )


class PlannedFederation:
  """Answers as planned; a query is its own number, 0 to 4.

  Attributes:
    asked: The queries that each call of `answer` asked.
  """

  # Of each client, what it says to each query.
  CLASSES = np.array([[0, 1, 0, 0, 1], [1, 1, 0, 1, 1]])
  ROUTES = ([0, 0, 0, 0, 0], [0, 1, 1, 1, 0])  # Without, with correction.

  def __init__(self, can_guide, classes=CLASSES):
    self.can_guide = can_guide
    self.asked = []
    self._classes = classes

  def answer(self, x, routes):
    numbers = x[:, 0].astype(int)
    self.asked.append(numbers.tolist())
    return queries.Answers(self._classes[routes, numbers], routes)

  def guide(self, x, corrected):
    routes = np.array(self.ROUTES[int(corrected)], np.int32)
    return queries.Routing(routes, np.eye(2)[routes])

  def vote(self, x):
    return np.array([1, 1, 0, 0, 0])


# Two queries of client 0, three of client 1.
TEST = (make_examples([0, 1], [0, 1]), make_examples([2, 3, 4], [0, 1, 0]))
# Own tests: 2 of 2, and 2 of 3; weights 3 and 1.
OWN_ACCURACY = 100 * (3 * 1 + 1 * 2 / 3) / 4


class TestEvaluate:
  def test_accuracies_with_a_guide_by_hand(self):
    federation = PlannedFederation(can_guide=True)
    evaluation, routing = guidance.evaluate(federation, [3, 1], TEST)
    # Right answers of the routed clients: to 0, 1, 2, 3, and not to 4.
    assert evaluation.system_accuracy == pytest.approx(80)
    # Client 0 alone: right on 0, 1, 2.
    assert evaluation.uncorrected_system_accuracy == pytest.approx(60)
    # Queries 0, 2 and 3 went home; of the others', 0 and 1.
    assert evaluation.client_accuracy == pytest.approx(60)
    assert evaluation.uncorrected_client_accuracy == pytest.approx(40)
    assert evaluation.average_accuracy == pytest.approx(OWN_ACCURACY)
    np.testing.assert_array_equal(routing, [[1, 1], [1, 2]])
    # Only queries away from home are asked again.
    assert federation.asked == [[0, 1, 2, 3, 4], [1, 4], [2, 3, 4]]

  def test_without_a_guide_the_vote_counts(self):
    evaluation, routing = guidance.evaluate(
      PlannedFederation(can_guide=False), [1, 1], TEST
    )
    # The vote is right on 1, 2 and 4.
    assert evaluation.system_accuracy == pytest.approx(60)
    assert routing is None
    measured = evaluation.measured()
    assert [name for name in measured if measured[name] is not None] == [
      "system_accuracy",
      "average_accuracy",
      "not_finite",
    ]

  @pytest.mark.parametrize("can_guide", [True, False])
  def test_answers_that_are_no_numbers_are_counted(self, can_guide):
    classes = PlannedFederation.CLASSES.copy()
    # Client 1 does not answer its own queries 2 and 4, nor one of client 0.
    classes[1, [0, 2, 4]] = learned.NO_CLIENT
    evaluation, _ = guidance.evaluate(
      PlannedFederation(can_guide, classes), [1, 1], TEST
    )
    assert evaluation.not_finite == pytest.approx(2 / 5)
    # Of client 1's three, 3 is left.
    assert evaluation.average_accuracy == pytest.approx(100 * (1 + 1 / 3) / 2)

  def test_each_client_has_its_own_values(self):
    # The last client is asked nothing, and counts in no mean.
    test = (*TEST, make_examples([], []))
    for can_guide, system in ((True, [100, 200 / 3]), (False, [50, 200 / 3])):
      found, _ = guidance.evaluate(
        PlannedFederation(can_guide), [3, 1, 7], test, round_num=4
      )
      assert found.average_accuracy == pytest.approx(OWN_ACCURACY)
      assert found.system_accuracy == pytest.approx(80 if can_guide else 60)
      assert found.clients.places == ({"round": 4},)
      for name, values in (("own", [100, 200 / 3]), ("system", system)):
        np.testing.assert_allclose(
          found.clients[f"{name}_accuracy"], [[*values, np.nan]], rtol=1e-6
        )


def test_one_round_has_no_spread():
  result = guidance.GuidanceResult(
    {3: guidance.Evaluation(1.0, 2.0)}, (3,), None, 0.0
  )
  assert result.final() == {
    "system_accuracy": 1.0,
    "average_accuracy": 2.0,
    "not_finite": 0.0,
  }


def make_federation_data(generator, num_clients=2):
  """Clients apart in the first feature, classes apart in the second."""
  found = []
  for client in range(num_clients):
    y = generator.integers(0, 2, 40)
    x = generator.normal(scale=0.2, size=(40, 2))
    x[:, 0] += 2 * client - 1
    # The same side means another class at the other client.
    x[:, 1] += (2 * y - 1) * (1 - 2 * client)
    found.append(examples.Examples(x.astype(np.float32), y.astype(np.int32)))
  return found


GENERATOR = np.random.default_rng(3)
GOOD = make_federation_data(GENERATOR)
NOTHING = examples.Examples(GOOD[0].x[:0], GOOD[0].y[:0])
WRONG = GOOD[0]._replace(y=GOOD[0].y[1:])


@pytest.mark.parametrize(
  "train, test, message",
  [
    ([GOOD[0], WRONG], GOOD, r"y of client 1: .* got \[39\]"),
    (GOOD, [WRONG, GOOD[1]], r"y of client 0: .* got \[39\]"),
    (
      *([GOOD[0], NOTHING], [NOTHING, GOOD[1]]),
      "no client has both a training and a",
    ),
  ],
)
def test_bad_examples_are_refused_first(train, test, message, typed_algorithm):
  model = mlp.build((2,), num_classes=2, width=4, head_width=3)
  with refused(f"^{message}"):
    guidance.run(typed_algorithm(model), train, test, num_rounds=1, run_seed=0)


@pytest.mark.slow
class TestRun:
  HPARAMS = fed_drm.HParams(
    lambda_=0.7, local_steps=20, batch_size=20, learning_rate=0.1
  )

  @pytest.fixture(scope="class")
  def data(self):
    generator = np.random.default_rng(3)
    return make_federation_data(generator), make_federation_data(generator)

  @pytest.fixture(scope="class")
  def algorithm(self, context):
    del context
    model = guided_model.with_guide(
      mlp.build((2,), num_classes=2, width=16, head_width=6), 2, width=8
    )
    return algorithms.build(fed_drm, model, self.HPARAMS, num_queries=100)

  @pytest.fixture(scope="class")
  def run(self, algorithm, data):
    """Returns `run(**options)`."""
    return functools.partial(
      guidance.run,
      algorithm,
      *data,
      **{"num_rounds": 7, "run_seed": 0},
      **{"evaluate_every": 3, "num_final_rounds": 2},
    )

  @pytest.fixture(scope="class")
  def finished(self, run):
    record = Record()
    return run(callbacks=[record]), record.steps

  def test_evaluated_rounds_are_those_asked_for_and_queries_find_who_knows(
    self, finished
  ):
    result, rows = finished
    assert list(result.evaluations) == [3, 6, 7]
    assert result.final_rounds == (6, 7)
    assert [row[0] for row in rows] == list(range(1, 8))
    assert [row[0] for row in rows if row[2] is not None] == [3, 6, 7]
    assert rows[-1][1] < rows[0][1]
    # Queries find the client that knows.
    final = result.evaluations[7]
    assert final.client_accuracy > 95
    assert final.system_accuracy > 90
    assert final.average_accuracy > 90
    assert np.trace(result.routing) > 0.95 * 80

  def assert_same(self, result, whole):
    assert result.evaluations == whole.evaluations
    assert result.final() == whole.final()
    np.testing.assert_array_equal(result.routing, whole.routing)

  def test_run_that_was_stopped_ends_as_one_that_was_not(
    self, run, data, finished, tmp_path
  ):
    def run_on(record):
      checkpoint = checkpoints.Run(tmp_path / "run", "key", every=4)
      return run(callbacks=[record], checkpoint=checkpoint)

    _, *ended = stop_and_repeat(run_on, 6)
    whole, all_rows = finished
    for (result, record), expected in zip(
      ended, ([3, 5, 6, 7], [3, 6, 7]), strict=True
    ):
      (running,) = record.ended
      assert running.round_num == result.server_state.round_num == 7
      assert len(result.client_states) == len(data[0])
      self.assert_same(result, whole)
      assert record.steps == [row for row in all_rows if row[0] in expected]
      # But losses are those of all rounds.
      assert record.losses == [row[:2] for row in all_rows]

  def test_run_that_takes_more_rounds_ends_as_one_that_had_them(
    self, run, finished, tmp_path
  ):
    def run_to(num_rounds):
      checkpoint = checkpoints.Run(tmp_path / "run", "key", every=9)
      return run(num_rounds=num_rounds, checkpoint=checkpoint)

    assert list(run_to(5).evaluations) == [3, 4, 5]
    self.assert_same(run_to(7), finished[0])


def algorithms_by_answers():
  """Yields the first of each way to answer unmarked.

  The contract has clients without examples in the rounds of every algorithm.
  """
  first = {}
  for name in algorithms.names("guidance"):
    build = algorithms.spec_builder(name, forms.NUM_CLIENTS)
    functions = build(forms.model(), forms.hparams(name))
    way = tuple(
      getattr(functions, each) is None
      for each in ("prepare_client", "guide_queries", "predict_as_server")
    )
    is_first = first.setdefault(way, name) == name
    marks = [] if is_first else [pytest.mark.every_algorithm]
    yield pytest.param(name, marks=marks)


@pytest.mark.long
@pytest.mark.parametrize("name", algorithms_by_answers())
def test_clients_without_examples_leave_numbers_finite(name, context):
  del context
  generator = np.random.default_rng(3)
  train, test = (make_federation_data(generator, 4) for _ in range(2))
  model = guided_model.with_guide(
    mlp.build((2,), num_classes=2, width=8, head_width=6), 4, width=8
  )
  result = guidance.run(
    algorithms.build(
      name, model, forms.hparams(name), num_clients=4, num_queries=100
    ),
    [*train[:2], NOTHING, NOTHING],
    [test[0], NOTHING, test[2], NOTHING],
    num_rounds=2,
    run_seed=0,
    client_names=["a", "b", "c", "d"],
  )
  assert result.left_out == (("c", "d"), ("b", "d"))
  for value in result.final().values():
    assert np.isfinite(value)
  # Client c has not trained, so that its tests weigh nothing here.
  measured = result.evaluations[2]
  assert measured.average_accuracy * 40 / 100 == pytest.approx(
    round(measured.average_accuracy * 40 / 100)
  )
  assert measured.not_finite == 0
