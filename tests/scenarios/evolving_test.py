"""Tests of runs on evolving domains: when and on what they are evaluated."""

import dataclasses
import functools

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.fixtures import trees
from tests.fixtures.refusals import refused
from tests.fixtures.runs import Record
from tests.fixtures.runs import stop_and_repeat
from tff_shift import algorithms
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_rep
from tff_shift.data import client_dataset
from tff_shift.data import table
from tff_shift.data.shifts import evolving as evolving_data
from tff_shift.learning import evaluation
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.models.networks import mlp
from tff_shift.scenarios.evolving import simulation as evolving
from tff_shift.simulation import bounds
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.usefixtures("context")

NUM_CLIENTS = 3
NUM_DOMAINS = 4
DOMAIN_SIZE = 40
RUN_SEED = 2


def make_clients(target=NUM_DOMAINS - 1):
  """Points beside a line that turns; the first feature tells the domain.

  The class is the side of the line, with some noise: nobody is always right.
  """
  generator = np.random.default_rng(0)
  parts = []
  for m in range(NUM_DOMAINS):
    x = generator.normal(size=(DOMAIN_SIZE, 2))
    direction = np.array([np.cos(m * np.pi / 6), np.sin(m * np.pi / 6)])
    noise = 0.3 * generator.normal(size=DOMAIN_SIZE)
    mark = np.full((DOMAIN_SIZE, 1), m)
    parts.append(
      evolving_data.Domain(
        np.concatenate([mark, x], axis=1).astype(np.float32),
        (x @ direction + noise > 0).astype(np.int32),
        f"domain {m}",
      )
    )
  dataset = evolving_data.EvolvingDataset(
    "lines", tuple(parts), table.Schema(classes=("left", "right"))
  )
  return evolving_data.assemble_clients(
    evolving_data.up_to(dataset, target),
    num_clients=NUM_CLIENTS,
    dirichlet=2.0,
    seed=1,
  )


CLIENTS = make_clients()


MODEL = mlp.build((3,), width=8, head_width=4)


@pytest.fixture(scope="module")
def algorithm():
  return algorithms.build(
    fed_avg,
    MODEL,
    fed_avg.HParams(batch_size=8, local_steps=2, learning_rate=0.1),
    num_evaluation_domains=NUM_DOMAINS,
  )


def recording(algorithm):
  """The algorithm, and lists of its phases' arguments and server states."""
  arguments, states = [], []

  def record(phase):
    def run(*values):
      arguments.append(values)
      result = phase(*values)
      states.append(result[0])
      return result

    return run

  return (
    dataclasses.replace(algorithm, phases=tuple(map(record, algorithm.phases))),
    arguments,
    states,
  )


def with_second(**changes):
  """The clients, with changes of the second one."""
  return [CLIENTS[0], CLIENTS[1]._replace(**changes), CLIENTS[2]]


def without_domains(evaluation):
  """An evaluation without what is measured on single domains."""
  return evaluation._replace(client_per_domain=None)


def share_of_target(client):
  """A client's examples of the last domain, by their mark."""
  of_target = client.test.x[:, 0] == NUM_DOMAINS - 1
  return client.test.x[of_target], client.test.y[of_target]


def mean_loss(logits, y):
  log_probabilities = scipy.special.log_softmax(np.float64(logits), axis=1)
  return -log_probabilities[np.arange(len(y)), y].mean()


@dataclasses.dataclass
class Finished:
  """A run, with what it was seen to do."""

  result: evolving.EvolvingResult
  calls: list
  arguments: list
  states: list


def run(algorithm, clients=CLIENTS, num_rounds=1, **options):
  return evolving.run(
    algorithm, clients, num_rounds=num_rounds, run_seed=RUN_SEED, **options
  )


run_alike = functools.partial(
  run, num_rounds=5, participation=0.7, evaluate_every=2
)


@pytest.fixture(scope="module")
def finished(algorithm):
  recorded, arguments, states = recording(algorithm)
  record = Record()
  result = run_alike(recorded, callbacks=[record])
  return Finished(result, record.steps, arguments, states)


@pytest.fixture(scope="module")
def predict(finished, compile_in_graph):
  """Returns `predict(weights, x)`, the logits of the model."""
  x = tf.TensorSpec([None, 3], tf.float32)
  return compile_in_graph(MODEL.predict, finished.states[0].weights, x)


def test_training_data_are_all_training_examples_of_the_source_domains():
  for client in CLIENTS:
    data = evolving.training_data(client, RUN_SEED)
    assert len(data.domain_sizes) == NUM_DOMAINS - 1
    for value, expected in (
      (data.x[:, 0], np.repeat(np.arange(NUM_DOMAINS - 1), data.domain_sizes)),
      (data.x, client.train.x),
      (data.y, client.train.y),
      (data.seed, randomness.client_seed(RUN_SEED, client.client_id)),
    ):
      np.testing.assert_array_equal(value, expected)
  # Those of the target are left out even if there are any.
  wrong = CLIENTS[0]._replace(train=CLIENTS[0].test)
  assert wrong.train.domain_sizes[-1] > 0
  data = evolving.training_data(wrong, RUN_SEED)
  assert len(data.x) == len(data.y) == data.domain_sizes.sum()
  assert data.x[:, 0].max() == NUM_DOMAINS - 2


class TestRun:
  @pytest.mark.slow
  def test_evaluations_come_after_every_second_round_and_the_last(
    self, finished
  ):
    evaluations = finished.result.evaluations
    assert [e.round_num for e in evaluations] == [2, 4, 5]
    assert [call[0] for call in finished.calls] == [1, 2, 3, 4, 5]
    by_round = {each.round_num: each for each in evaluations}
    for round_num, train_loss, found in finished.calls:
      assert found is by_round.get(round_num)
      assert found is None or found.train_loss == train_loss
    # Single domains are measured after the last one alone.
    *earlier, last = evaluations
    assert all(e.client_per_domain is None for e in earlier)
    assert list(last.client_per_domain) == list(evaluation.METRICS)
    for name, values in last.client_per_domain.items():
      assert values.shape == (NUM_DOMAINS,)
      assert values[-1] == pytest.approx(last.client[name], rel=1e-6)

  def test_no_example_of_the_target_is_trained_on(self, finished):
    target = np.concatenate([share_of_target(client)[0] for client in CLIENTS])
    assert len(target) == DOMAIN_SIZE
    for _, _, data in finished.arguments:
      assert len(data) == 2  # 0.7 of 3.
      for each in data:
        assert each.x[:, 0].max() == NUM_DOMAINS - 2
        assert not (each.x[:, np.newaxis] == target).all(axis=2).any()

  @pytest.fixture(scope="class")
  def logits(self, finished, predict):
    """Returns `logits(position, x)` of the model after an evaluated round."""
    return lambda position, x: predict(
      finished.states[(2, 4, 5)[position] - 1].weights, x
    )

  @pytest.mark.parametrize("position", [0, 1, 2])
  def test_accuracies_are_those_on_the_target(self, finished, logits, position):
    """The server on the examples of all; clients on their share, alike."""
    shares = [share_of_target(client) for client in CLIENTS]
    x, y = (np.concatenate(parts) for parts in zip(*shares, strict=True))
    assert (x[:, 0] == NUM_DOMAINS - 1).all() and len(y) == DOMAIN_SIZE
    predicted = logits(position, x)
    is_correct = predicted.argmax(axis=1) == y
    found = finished.result.evaluations[position]
    # Of 40 examples in float32; not all are right, nor wrong.
    assert 0 < is_correct.sum() < DOMAIN_SIZE
    assert found.server["accuracy"] == pytest.approx(
      100 * is_correct.mean(), rel=1e-6
    )
    # Each example has the same weight in the losses of both.
    for losses in (found.server, found.client):
      assert losses["loss"] == pytest.approx(mean_loss(predicted, y), rel=1e-5)
    sizes = [len(labels) for _, labels in shares]
    # Shares of different sizes: the two mean accuracies are not the same.
    assert len(set(sizes)) > 1
    parts = np.split(is_correct, np.cumsum(sizes)[:-1])
    assert found.client["accuracy"] == pytest.approx(
      np.mean([100 * part.mean() for part in parts]), rel=1e-6
    )

  def test_each_client_has_its_own_values(self, finished):
    for each in finished.result.evaluations:
      assert each.clients.places == ({"round": each.round_num},)
      assert list(each.clients) == ["client_accuracy", "client_loss"]
      values = each.clients["client_accuracy"]
      assert values.shape == (1, NUM_CLIENTS) and values.dtype == np.float32
      assert np.mean(values) == pytest.approx(each.client["accuracy"])
    frame = finished.result.clients_to_dataframe()
    assert list(frame) == [
      *("round", "client", "client_accuracy", "client_loss")
    ]
    assert len(frame) == NUM_CLIENTS * len(finished.result.evaluations)
    np.testing.assert_array_equal(
      frame["client_accuracy"].to_numpy()[-NUM_CLIENTS:],
      finished.result.client_accuracy.astype(np.float32),
    )
    rows = finished.result.to_dataframe()
    assert list(rows)[:3] == ["round", "train_loss", "client_accuracy"]
    assert rows["client_accuracy"].tolist() == [
      each.client["accuracy"] for each in finished.result.evaluations
    ]

  def test_clients_that_are_not_evaluated_have_no_values(self, algorithm):
    result = run(algorithm, evaluation_clients=2)
    (values,) = result.final.clients["client_accuracy"]
    chosen = evolving.evaluated_clients(NUM_CLIENTS, 2, RUN_SEED, 1)
    assert np.flatnonzero(~np.isnan(values)).tolist() == chosen
    assert result.clients_to_dataframe()["client"].tolist() == chosen

  def test_domains_are_judged_on_the_test_examples(self, finished, logits):
    accuracies = [[] for _ in range(NUM_DOMAINS)]
    for client in CLIENTS:
      right = logits(2, client.test.x).argmax(axis=1) == client.test.y
      for m in range(NUM_DOMAINS):
        of_domain = client.test.x[:, 0] == m
        if of_domain.any():
          accuracies[m].append(100 * right[of_domain].mean())
    np.testing.assert_allclose(
      finished.result.evaluations[-1].client_per_domain["accuracy"],
      [np.mean(each) for each in accuracies],
      rtol=1e-6,
    )

  def test_run_that_was_stopped_ends_as_one_that_was_not(
    self, finished, algorithm, tmp_path
  ):
    def run_on(record):
      return run_alike(
        algorithm,
        callbacks=[record],
        checkpoint=checkpoints.Run(tmp_path / "run", "key", every=3),
      ).evaluations

    _, *ended = stop_and_repeat(run_on, 4)
    whole = finished.result
    (((*earlier, last), resumed), ((*again, _), told)) = ended
    # The evaluation of before is told again.
    assert resumed.steps[0] == (2, earlier[0].train_loss, earlier[0])
    assert without_domains(last) == without_domains(whole.final)
    for name, values in whole.final.client_per_domain.items():
      np.testing.assert_array_equal(last.client_per_domain[name], values)
    # And one that has come to its end is told whole.
    assert again == earlier == list(whole.evaluations[:-1])
    for record in (resumed, told):
      assert [call[0] for call in record.steps] == [2, 4, 5]
      assert [running.round_num for running in record.ended] == [5]
      # The loss of each round, evaluated or not, of before or not.
      assert record.losses == [call[:2] for call in finished.calls]

  @pytest.mark.parametrize("fewer", [3, 4])
  def test_run_that_takes_more_rounds_ends_as_one_that_had_them(
    self, finished, algorithm, tmp_path, fewer
  ):
    """The third round is evaluated as the last one alone, the fourth too."""

    def run_to(num_rounds, *told):
      return run_alike(
        algorithm,
        num_rounds=num_rounds,
        callbacks=told,
        checkpoint=checkpoints.Run(tmp_path / "run", "key", every=5),
      ).evaluations

    assert run_to(fewer)[-1].client_per_domain is not None
    told = Record()
    *earlier, last = run_to(5, told)
    steps = [step[0] for step in told.steps]
    assert sorted({2, 4, 5, *range(fewer + 1, 6)}) == steps
    # Nor is there what is measured on single domains.
    assert earlier == list(finished.result.evaluations[:-1])
    assert without_domains(last) == without_domains(finished.result.final)
    assert last.client_per_domain is not None
    with refused("saved after 5 steps, more than the 4 requested"):
      run_to(4)

  def test_clients_that_diverge_are_counted(self, algorithm, finished):
    assert finished.result.num_diverged == 0
    bad = CLIENTS[1].train
    bad = bad._replace(x=np.full_like(bad.x, 1.8e19))  # Logits overflow.
    result = run(algorithm, with_second(train=bad), num_rounds=2)
    assert result.num_diverged == 2
    assert np.isfinite(result.final.client["loss"])


class TestForgetting:
  def test_by_hand(self):
    # The best are 90, 60 and 50, and the last 70, 60 and 80.
    accuracies = [[90, 50, np.nan], [60, 60, 50], [70, 60, 80]]
    assert evolving.forgetting(accuracies) == (20 + 0) / 2
    accuracies[0][2] = 40
    assert evolving.forgetting(accuracies) == pytest.approx((20 + 0 - 30) / 3)
    assert np.isnan(evolving.forgetting([[np.nan], [1]]))

  def test_it_is_of_the_source_domains(self, algorithm, finished):
    assert finished.result.forgetting is None
    result = run(algorithm, num_rounds=3, measures_forgetting=True)
    first, second, last = (
      each.client_per_domain["accuracy"][:-1] for each in result.evaluations
    )
    expected = np.mean(np.maximum(first, second) - last)
    assert result.forgetting == pytest.approx(expected)
    plain = run(algorithm, num_rounds=3)
    assert [each.client for each in plain.evaluations] == [
      each.client for each in result.evaluations
    ]


class TestBounds:
  def test_pooled_client_has_all_training_examples(self, algorithm):
    first, *others = evolving.pooled(CLIENTS, num_new_clients=1)
    expected = sum(each.train.domain_sizes for each in CLIENTS[:-1])
    assert first.train.domain_sizes.tolist() == expected.tolist()
    marks = np.repeat(np.arange(NUM_DOMAINS), first.train.domain_sizes)
    assert first.train.x[:, 0].tolist() == marks.tolist()
    assert [len(each.train.y) for each in others] == [0] * len(others)
    for one, other in zip([first, *others], CLIENTS, strict=True):
      assert one.test is other.test
    # One client alone, with the examples of all, gives the same server.
    pooled = evolving.pooled(CLIENTS)
    alone = run(algorithm, pooled, num_rounds=2)
    assert alone.left_out.evaluation == ()
    only = run(algorithm, pooled[:1], num_rounds=2)
    trees.assert_equal(alone.server_state.weights, only.server_state.weights)

  def test_majority_class_is_that_of_the_source_domains(self):
    found = evolving.baseline(bounds.majority_class, CLIENTS, num_new_clients=1)
    trained = CLIENTS[:-1]
    labels = [share_of_target(each)[1] for each in CLIENTS]
    own = [
      100 * np.mean(y == np.argmax(np.bincount(each.train.y)))
      for each, y in zip(trained, labels, strict=False)
    ]
    np.testing.assert_array_equal(found.client_accuracy, [*own, np.nan])
    assert found.metrics["client_accuracy"] == pytest.approx(np.mean(own))
    shared = np.argmax(
      np.bincount(np.concatenate([each.train.y for each in trained]))
    )
    assert found.metrics["server_accuracy"] == pytest.approx(
      100 * np.mean(np.concatenate(labels[:-1]) == shared)
    )
    assert found.metrics["new_client_accuracy"] == pytest.approx(
      100 * np.mean(labels[-1] == shared)
    )


@pytest.mark.parametrize(
  "changes, message",
  [
    (
      {"train": CLIENTS[1].train._replace(y=np.zeros(3, np.int32))},
      "y of client 1: the shape must",
    ),
    (
      {"test": CLIENTS[1].test._replace(domain_sizes=[9])},
      "domain_sizes of client 1, to predict",
    ),
    (
      {"train": CLIENTS[1].train[:2]},
      "train of client 1 must be a ClientDataset, got tuple",
    ),
    (
      {"name": "second", "train": CLIENTS[1].train._replace(y=np.zeros(3))},
      "y of client 'second': the shape",
    ),
  ],
)
@pytest.mark.parametrize("is_made", [False, True])
def test_bad_clients_are_refused_first(algorithm, changes, message, is_made):
  clients = with_second(**changes)
  if is_made:
    clients = rounds.DataOnDemand(3, clients.__getitem__)
  with refused(f"^{message}"):
    run(algorithm, clients)


class TestAbsentClients:
  """The contract runs them with every algorithm; here it is who is told."""

  @staticmethod
  def without(client, part, keep):
    """The client with those domains of a part alone of which `keep` is true."""
    examples = getattr(client, part)
    kept = np.repeat(keep, examples.domain_sizes)
    return client._replace(
      **{
        part: client_dataset.ClientDataset.from_arrays(
          examples.x[kept],
          examples.y[kept],
          np.where(keep, examples.domain_sizes, 0).astype(np.int32),
        )
      }
    )

  @pytest.fixture
  def absent(self):
    """The first has no source domain, the last no target."""
    first, second, last = CLIENTS
    return [
      self.without(first, "train", [False] * NUM_DOMAINS),
      second._replace(name="second"),
      self.without(last, "test", [True] * (NUM_DOMAINS - 1) + [False]),
    ]

  def test_means_are_those_of_who_has_examples(
    self, algorithm, absent, predict
  ):
    result = run(algorithm, absent, num_rounds=2)
    weights = result.server_state.weights
    assert result.left_out == (("0",), ("2",))
    # Of two clients with the server's model, each counts alike in `accuracy`,
    # and their examples in the server's.
    accuracies, sizes = [], []
    for client in absent[:2]:
      x, y = share_of_target(client)
      logits = predict(weights, x)
      accuracies.append(100 * np.mean(logits.argmax(axis=1) == y))
      sizes.append(len(y))
    assert result.final.client["accuracy"] == pytest.approx(np.mean(accuracies))
    assert result.final.server["accuracy"] == pytest.approx(
      np.average(accuracies, weights=sizes)
    )

  def test_who_is_evaluated_is_drawn_of_those_that_can_be(
    self, algorithm, absent
  ):
    found = run(algorithm, absent, num_rounds=6, evaluation_clients=1)
    for each in found.evaluations:
      assert np.isfinite(each.client["accuracy"])

  def test_only_pairs_of_domains_are_learned_from(self, absent):
    one_domain = self.without(absent[1], "train", [False, True, False, False])
    assert evolving.left_out([*absent, one_domain], 2).training == (
      "0",
      "second",
    )
    with refused(r"^no client has training examples of 2 source domains"):
      evolving.left_out([absent[0], one_domain], 2)

  @pytest.mark.parametrize(
    "chosen, message",
    [
      ([0], "no client has training examples of 1 source domain$"),
      ([2], "no client has test examples of the last domain, the target"),
    ],
  )
  def test_nobody_is_refused(self, algorithm, absent, chosen, message):
    with refused(f"^{message}"):
      run(algorithm, [absent[client] for client in chosen])


@pytest.mark.slow
class TestNewClients:
  def run(self, algorithm, clients=CLIENTS, **options):
    given = {"num_rounds": 3, "participation": 0.5, "num_new_clients": 2}
    return run(algorithm, clients, **given | options)

  def test_they_never_train_and_are_evaluated_apart(self, algorithm):
    *trained, first, second = CLIENTS
    recorded, arguments, _ = recording(algorithm)
    result = self.run(recorded, validates=True)
    found = {int(each.client_id) for _, _, data in arguments for each in data}
    assert found <= {each.client_id for each in trained}
    # Half of the clients that train.
    sizes = [len(data) for _, _, data in arguments]
    assert sizes == [round(len(trained) / 2 + 1e-9)] * 3
    # The global model is each new client's model: on the pooled examples by
    # hand.
    x, y = map(
      np.concatenate, zip(*map(share_of_target, (first, second)), strict=True)
    )
    logits = algorithm.model.predict(result.server_state.weights, x).numpy()
    final = result.final
    assert final.new_client["pooled_accuracy"] == pytest.approx(
      100 * np.mean(logits.argmax(axis=1) == y), abs=1e-4
    )
    assert final.new_client["loss"] == pytest.approx(
      mean_loss(logits, y), rel=1e-5
    )
    assert final.measured()["new_client_loss"] == final.new_client["loss"]

  def test_others_are_trained_as_if_they_were_alone(self, algorithm):
    alone = self.run(algorithm, CLIENTS[:-2], num_new_clients=0)
    assert self.run(algorithm).final[:3] == alone.final[:3]

  @pytest.mark.parametrize("number", [-1, NUM_CLIENTS, 1.5])
  def test_wrong_number_is_refused(self, algorithm, number):
    with refused(r"^num_new_clients="):
      self.run(algorithm, num_new_clients=number)


@pytest.mark.slow
class TestContinued:
  """A run on four domains that continues one on the first three."""

  @pytest.fixture(scope="class")
  def build(self):
    return lambda num_domains: algorithms.build(
      fed_rep,
      MODEL,
      fed_rep.HParams(batch_size=8, local_steps=1, learning_rate=0.1),
      num_evaluation_domains=num_domains,
    )

  @pytest.fixture(scope="class")
  def longer(self, build):
    return build(NUM_DOMAINS)

  @pytest.fixture(scope="class")
  def previous(self, build):
    return self.run(build(NUM_DOMAINS - 1), make_clients(NUM_DOMAINS - 2))

  def run(self, algorithm, clients=CLIENTS, **options):
    return run(
      algorithm,
      clients,
      # One client of three takes part in a round.
      **{"num_rounds": 3, "participation": 0.3, "evaluate_every": 2} | options,
    )

  def test_it_is_the_next_rounds_by_hand(self, longer, previous):
    result = self.run(longer, previous=previous)
    server, states = previous.server_state, previous.client_states.in_memory
    assert 0 < len(states) < NUM_CLIENTS
    data = [evolving.training_data(client, RUN_SEED) for client in CLIENTS]
    for round_num in (3, 4, 5):
      (client,) = rounds.sample_clients(NUM_CLIENTS, 0.3, RUN_SEED, round_num)
      if client not in states:
        (states[client],) = longer.initialize_client(
          server, [data[client].seed]
        )
      own = [states[client]]
      for phase in longer.phases:
        server, own, metrics = phase(server, own, [data[client]])
      (states[client],) = own
    trees.assert_equal(result.server_state, server)
    assert result.server_state.round_num == 6
    trees.assert_equal(result.client_states.in_memory, states)
    numbers = [evaluation.round_num for evaluation in result.evaluations]
    assert numbers == [2, 3]
    assert result.final.train_loss == metrics["loss"]
    correct = []
    for client in CLIENTS:
      x, y = share_of_target(client)
      # A client's layers are the last one of the head.
      weights = *server.weights, *result.client_states[client.client_id]
      place = len(MODEL.backbone.shapes)
      whole = split_model.SplitWeights(weights[:place], weights[place:])
      logits = MODEL.predict(whole, x).numpy()
      correct.append(np.mean(logits.argmax(axis=1) == y))
    assert result.final.client["accuracy"] == pytest.approx(
      100 * np.mean(correct)
    )

  def test_resumed_run_equals_uninterrupted_run(
    self, longer, previous, tmp_path
  ):
    def run_in(folder, record):
      return self.run(
        longer,
        previous=previous,
        callbacks=[record],
        checkpoint=checkpoints.Run(tmp_path / folder, "key", every=1),
      )

    whole, resumed = Record(), Record()
    expected = run_in("whole", whole)
    with pytest.raises(KeyboardInterrupt):
      run_in("run", Record(stop=2))
    result = run_in("run", resumed)
    assert resumed.losses == whole.losses
    assert [loss[0] for loss in whole.losses] == [1, 2, 3]
    assert without_domains(result.final) == without_domains(expected.final)
    trees.assert_equal(result.server_state, expected.server_state)

  def test_states_are_required(self, longer, previous):
    message = "previous is not allowed: it must have the states"
    for bad in (
      previous._replace(client_states=None),
      previous._replace(client_states=previous.client_states[:2]),
    ):
      with refused(message):
        self.run(longer, previous=bad)
