"""Tests of phases: what becomes of clients whose work has diverged."""

import functools
from typing import Any
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from numpy.testing import assert_allclose

from tests.fixtures import clients
from tests.fixtures import trees
from tff_shift.data import client_dataset
from tff_shift.execution import local as local_execution
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import phases
from tff_shift.learning.aggregators import aggregator_hparams
from tff_shift.learning.aggregators import factories
from tff_shift.learning.aggregators import server_optimizer_hparams
from tff_shift.learning.aggregators import server_optimizers

pytestmark = pytest.mark.usefixtures("context")

SEED = np.int32([3, 4])
NAN, INF = float("nan"), float("inf")


class Memory(NamedTuple):
  """A client's state, of three types."""

  vector: Any
  count: Any
  seen: Any


def client(update, *, vector=0.0, loss=1.0, size=1):
  """A client that sends an update and keeps a vector; both are given."""
  row = [*update, vector, loss]
  return client_dataset.ClientDataset.from_arrays(
    np.array([row] * size, np.float32).reshape(size, 4),
    np.zeros(size, np.int32),
    seed=SEED,
  )


def remember(memory, data) -> Memory:
  return Memory(
    memory.vector + data.x[0, 2:3], memory.count + 1, tf.constant(True)
  )


def train_empty_as_well(weights, memory, data, round_num):
  """A client without examples sends ones, and its loss is 100."""
  row = tf.concat([data.x, [[1.0, 1.0, 0.0, 100.0]]], 0)[0]
  return algorithm_lib.ClientResult(
    update=(row[:1], row[1:2]), client_state=memory, loss=row[3]
  )


def train_client(weights, memory, data, round_num):
  update = data.x[0, :2]
  return algorithm_lib.ClientResult(
    update=(update[:1], update[1:]),
    client_state=remember(memory, data),
    loss=data.x[0, 3],
  )


def personalize_client(weights, memory, data, round_num):
  return algorithm_lib.PersonalResult(remember(memory, data), data.x[0, 3])


def build(
  aggregator=None,
  *,
  two_phases=False,
  weighting="num_examples",
  requirements=factories.NO_REQUIREMENTS,
  server_optimizer=None,
  num_clients=None,
  reports_losses=False,
  **functions,
):
  work = algorithm_lib.AlgorithmSpec(
    initial_weights=lambda seed: (tf.ones([1]), tf.ones([1])),
    initial_client_state=lambda seed, weights: Memory(
      tf.ones([1]), tf.constant(0), tf.constant(False)
    ),
    **{
      "train_client": train_client,
      "personalize_client": personalize_client if two_phases else None,
      **functions,
    },
    predict_as_client=lambda weights, memory, data, examples: (
      examples.x[:, 2:]
    ),
  )
  return clients.build(
    work,
    weighting=weighting,
    requirements=requirements,
    aggregator=aggregator,
    server_optimizer=server_optimizer,
    num_clients=num_clients,
    reports_losses=reports_losses,
  )


def first_round(algorithm, data):
  """Returns weights, client states and metrics after each phase."""
  state = algorithm.initialize(SEED)
  memories = algorithm.initialize_client(state, [SEED] * len(data))
  found = []
  for phase in algorithm.phases:
    state, memories, metrics = phase(state, memories, data)
    found.append((np.concatenate(state.weights), memories, metrics))
  return found


@pytest.fixture(scope="module")
def by_mean():
  return build()


def is_untouched(memory) -> bool:
  return memory == Memory(1.0, 0, False)


class TestTrainingPhase:
  @pytest.mark.parametrize("bad", [NAN, INF, -INF])
  def test_mean_is_that_of_the_others(self, by_mean, bad):
    data = [
      client([1, 2], vector=5),
      client([0, bad], vector=6, loss=NAN, size=4),
      client([4, -4], vector=7, loss=4, size=2),
      # Of its state alone: its next update would be infected.
      client([3, 3], vector=INF),
    ]
    ((weights, memories, metrics),) = first_round(by_mean, data)
    # (1 * (1, 2) + 2 * (4, -4)) / 3 = (3, -2).
    assert_allclose(weights, [4, -1], rtol=1e-6)
    assert [m.vector.item() for m in memories] == [6, 1, 8, 1]
    assert is_untouched(memories[1]) and is_untouched(memories[3])
    assert metrics == {"loss": 2.5, "num_clients": 4, "num_diverged": 2}

  def test_loss_that_is_not_a_number_shows_and_the_update_counts(self, by_mean):
    data = [client([1, 2]), client([3, 4], loss=NAN)]
    ((weights, memories, metrics),) = first_round(by_mean, data)
    assert_allclose(weights, [3, 4])
    assert memories[1].count == 1
    assert np.isnan(metrics["loss"]) and metrics["num_diverged"] == 0


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("size", [[], [3], [200, 100], [2**15]])
def test_each_number_of_an_update_decides(run_in_graph, size, bad):
  # Sums of the largest numbers are infinite.
  update = np.full(size, np.finfo(np.float32).max, np.float32)
  assert not run_in_graph(phases.has_diverged, update)
  update.reshape(-1)[-1] = bad
  assert run_in_graph(phases.has_diverged, update)


# Nothing is clipped, so that the expected means are those of a mean.
AGGREGATORS = {
  "mean": None,
  "robust": aggregator_hparams.AggregatorHParams(),
  "dp": aggregator_hparams.AggregatorHParams(
    noise_multiplier=0.0, clipping="fixed", clipping_norm=9.0
  ),
  "dp_ftrl": aggregator_hparams.AggregatorHParams(
    noise_multiplier=0.0, clipping_norm=9.0, tree_restart=1
  ),
  "secure": aggregator_hparams.AggregatorHParams(
    clipping="none", zeroing=False
  ),
  "compressed": aggregator_hparams.AggregatorHParams(
    clipping="none", zeroing=False
  ),
}


@pytest.mark.slow
class TestAggregators:
  @pytest.fixture(scope="class", params=AGGREGATORS)
  def built(self, request):
    name = request.param
    aggregator = factories.build(name, AGGREGATORS[name], clients_per_round=3)
    weighting = "uniform" if name.startswith("dp") else "num_examples"
    return name, build(aggregator, weighting=weighting)

  def test_one_of_three_clients(self, built):
    name, algorithm = built
    ((weights, memories, metrics),) = first_round(
      algorithm,
      [
        client([0.25, 0.5]),
        client([NAN, INF], size=4),
        client([0.5, -0.25], size=2),
      ],
    )
    # (1 * (1/4, 1/2) + 2 * (1/2, -1/4)) / 3.
    mean = 5 / 12, 0
    if name.startswith("dp"):
      # ((1/4, 1/2) + (0, 0) + (1/2, -1/4)) / 3: it cannot be left out.
      mean = 1 / 4, 1 / 12
    assert_allclose(weights, np.add(1, mean), atol=1e-5)
    assert metrics["num_diverged"] == 1 and is_untouched(memories[1])

  def test_all_clients_leave_the_weights_as_they_were(self, built):
    ((weights, memories, metrics),) = first_round(
      built[1], [client([NAN, 0])] * 3
    )
    assert weights.tolist() == [1, 1]
    assert all(map(is_untouched, memories))
    assert metrics["num_diverged"] == metrics["num_clients"] == 3
    assert np.isnan(metrics["loss"])


class TestPersonalPhase:
  @pytest.fixture(scope="class")
  def algorithm(self):
    return build(two_phases=True)

  @pytest.mark.slow
  def test_state_stays_as_it_was_before_the_phase(self, algorithm):
    # 3e38 once is finite, and twice is not.
    data = [
      client([1, 2], vector=5),
      client([3, 4], vector=3e38, loss=3),
      # Diverges in training alone.
      client([NAN, 4], vector=6, loss=9),
    ]
    first, second = first_round(algorithm, data)
    assert first[2] == {"loss": 2, "num_clients": 3, "num_diverged": 1}
    assert second[2] == {"loss": 5, "num_clients": 3, "num_diverged": 1}
    assert [m.count for m in second[1]] == [2, 1, 1]
    assert is_untouched(first[1][2])
    assert [second[1][i].vector.item() for i in (0, 2)] == [11, 7]
    assert second[1][1] == first[1][1]
    assert second[0].tolist() == first[0].tolist()


class TestClientLosses:
  """The server sees the loss of each client, by its id."""

  @pytest.mark.slow
  @pytest.mark.parametrize("two_phases", [False, True])
  def test_are_those_of_the_last_phase(self, two_phases):
    algorithm = build(two_phases=two_phases, num_clients=5, reports_losses=True)
    data = [
      client([1, 2], loss=3)._replace(client_id=np.int32(4)),
      client([1, 2], vector=NAN, loss=7)._replace(client_id=np.int32(2)),
      client([3, 4], loss=5, size=2)._replace(client_id=np.int32(1)),
    ]
    found = first_round(algorithm, data)
    *others, (_, _, metrics) = found
    assert metrics["client_losses"].tolist() == [0, 5, 0, 0, 3]
    assert metrics["client_loss_counts"].tolist() == [0, 1, 0, 0, 1]
    assert all("client_losses" not in each for _, _, each in others)


class TestWeightOfAResult:
  """A client's weight is the vector that it is given."""

  REQUIREMENTS = factories.AggregationRequirements(
    own_weights="weights come from training"
  )

  def train_client(self, weights, memory, data, round_num):
    result = train_client(weights, memory, data, round_num)
    return result._replace(weight=data.x[0, 2])

  @pytest.fixture(scope="class")
  def weighted(self):
    return build(train_client=self.train_client, requirements=self.REQUIREMENTS)

  @pytest.mark.slow
  def test_counts_in_place_of_the_number_of_examples(self, weighted):
    data = [
      client([1, 2], vector=3, size=5),
      client([5, -2], vector=1),
      client([9, NAN], vector=7),
      # A weight that is not finite is a divergence.
      client([5, 5], vector=INF),
    ]
    ((weights, memories, metrics),) = first_round(weighted, data)
    # (3 (1, 2) + 1 (5, -2)) / 4, added to ones.
    assert_allclose(weights, [3, 2])
    assert metrics["num_diverged"] == 2
    assert all(map(is_untouched, memories[2:]))

  def test_total_of_zero_leaves_the_weights_as_they_were(self, weighted):
    ((weights, _, metrics),) = first_round(weighted, [client([1, 2])])
    assert weights.tolist() == [1, 1]
    # It has not diverged: it has nothing to say.
    assert metrics["num_diverged"] == 0

  @pytest.mark.parametrize("has_weight", [True, False])
  def test_and_needs_must_agree(self, has_weight):
    function = self.train_client if has_weight else train_client
    needs = factories.NO_REQUIREMENTS if has_weight else self.REQUIREMENTS
    with pytest.raises(TypeError, match="must have a weight if and only if"):
      build(train_client=function, requirements=needs)


class TestContribution:
  """Beside its update a client sends its loss and a one."""

  REQUIREMENTS = factories.AggregationRequirements(
    plaintext_sums="the server is told a sum"
  )

  def train_client(self, weights, memory, data, round_num):
    # A client without examples sends something as well, and its state is NaN.
    result = train_empty_as_well(weights, memory, data, round_num)
    is_empty = tf.equal(tf.size(data.y), 0)
    # An update of a form of its own, and what is added up beside it.
    return result._replace(
      update=result.update[0][0],
      client_state=memory._replace(vector=tf.where(is_empty, NAN, [7.0])),
      plaintext_sum=(result.loss, tf.constant(1)),
    )

  def update_server(self, weights, mean_update, plaintext_sum, info):
    total, count = plaintext_sum
    return (
      weights[0] + mean_update,
      weights[1] * total + tf.cast(10 * count + info.round_num, tf.float32),
    )

  @pytest.fixture(scope="class")
  def algorithm(self):
    return build(
      train_client=self.train_client,
      update_server=self.update_server,
      requirements=self.REQUIREMENTS,
    )

  @pytest.mark.slow
  def test_server_is_updated_by_mean_and_sum(self, algorithm):
    data = [
      client([1, 0], loss=2),
      client([4, 0], loss=5, size=2),
      # A sum that is not finite is a divergence.
      client([9, 0], loss=INF),
      client([0, 0], size=0),
    ]
    ((weights, memories, metrics),) = first_round(algorithm, data)
    # 1 + (1 + 2 * 4) / 3, and 1 * 7 + 20 in round 0.
    assert_allclose(weights, [4, 27])
    assert metrics["num_diverged"] == 1
    assert [m.vector.item() for m in memories] == [7, 7, 1, 1]

  @pytest.mark.slow
  def test_depends_on_no_other_aggregate(self, algorithm):
    # What remote workers need; TFF refuses what cannot be merged.
    form = tff.backends.native.compile_to_mergeable_comp_form(
      algorithm.phases[0]
    )
    assert isinstance(form, tff.framework.MergeableCompForm)

  def test_needs_must_speak_of_it(self):
    with pytest.raises(TypeError, match="AGGREGATION_REQUIREMENTS"):
      build(train_client=self.train_client, update_server=self.update_server)


# What keeps something from round to round. Adaptive norms come with clipping.
KEEPING = {
  **{
    name: functools.partial(server_optimizers.build, name)
    for name in server_optimizer_hparams.HPARAMS
  },
  "robust": lambda: factories.build("robust"),
  "dp_ftrl": lambda: factories.build(
    "dp_ftrl",
    aggregator_hparams.AggregatorHParams(noise_multiplier=0.1),
    clients_per_round=2,
  ),
  "secure": lambda: factories.build("secure"),
  "compressed": lambda: factories.build("compressed"),
  # A factory of others.
  "stock without weights": lambda: tff.learning.dp_aggregator(0.1, 2),
}


@pytest.mark.slow
class TestRoundOfNobody:
  """One round with examples, one without, one with examples."""

  NOBODY = (client([0, 0], size=0), client([9, 9], size=0))

  def run(self, algorithm, *rounds):
    state = algorithm.initialize(SEED)
    memories = algorithm.initialize_client(state, [SEED] * 2)
    states, losses = [], []
    for data in rounds:
      (phase,) = algorithm.phases
      state, memories, metrics = phase(state, memories, list(data))
      states.append(state)
      losses.append(metrics["loss"])
    return states, losses

  def check(self, algorithm, has_noise=False):
    first = client([0.5, -2]), client([8, 0.25])
    last = client([1, 1]), client([3, 0])
    states, losses = self.run(algorithm, first, self.NOBODY, last)
    before, after, end = (
      trees.bits(each._replace(round_num=())) for each in states
    )
    assert len(before) > 2
    assert before == after != end
    # What is kept moves with the weights.
    first_kept, _, last_kept = (
      trees.bits((state.aggregator, state.optimizer)) for state in states
    )
    assert first_kept != last_kept
    assert [int(each.round_num) for each in states] == [1, 2, 3]
    assert losses[0] == losses[2] == 1 and np.isnan(losses[1])
    if not has_noise:
      # As if there had been no round between.
      without, _ = self.run(algorithm, first, last)
      trees.assert_equal(
        *(each[-1]._replace(round_num=()) for each in (states, without))
      )

  @pytest.mark.parametrize(
    "name",
    [
      pytest.param(name, marks=[] if name == "fed_adam" else pytest.mark.slow)
      for name in KEEPING
    ],
  )
  def test_leaves_all_as_it_was(self, name):
    kept = KEEPING[name]()
    is_optimizer = name in server_optimizer_hparams.HPARAMS
    self.check(
      build(
        **{"server_optimizer" if is_optimizer else "aggregator": kept},
        weighting="uniform",
        train_client=train_empty_as_well,
      ),
      has_noise=name in ("dp_ftrl", "stock without weights"),
    )

  @pytest.mark.parametrize(
    "nobody", [(), NOBODY], ids=["no client", "no examples"]
  )
  def test_with_dp_it_is_a_round_of_noise(self, nobody):
    aggregator = factories.build(
      "dp",
      aggregator_hparams.AggregatorHParams(
        noise_multiplier=1.0, clipping="fixed", clipping_norm=4.0
      ),
      clients_per_round=2,
    )
    algorithm = build(
      aggregator, weighting="uniform", train_client=train_empty_as_well
    )
    (phase,) = algorithm.phases
    weights = []
    state = algorithm.initialize(SEED)
    for _ in range(50):
      state, memories, metrics = phase(
        state,
        algorithm.initialize_client(state, [SEED] * len(nobody)),
        [*nobody],
      )
      assert len(memories) == len(nobody) and np.isnan(metrics["loss"])
      weights.append(state.weights)
    steps = np.diff(weights, axis=0)
    assert np.all(steps != 0)
    # 1 * 4 / 2; the standard error of a deviation is 1 / sqrt(2 n) of it.
    assert np.std(steps) == pytest.approx(2, rel=5 / np.sqrt(2 * steps.size))

  @pytest.mark.cpp
  def test_leaves_all_as_it_was_on_the_cpp_executor(self):
    algorithm = build(KEEPING["robust"](), train_client=train_empty_as_well)
    with local_execution.local_context():
      self.check(algorithm)


# Mean updates of three rounds; the second weight gets none in the first.
MEANS = np.array([[1, 0], [-3, 0.5], [2, 0.25]])


def oracle_of(name):
  """The weights after each round, in NumPy, from the papers' equations."""
  x, m, v = np.ones(2), np.zeros(2), np.full(2, 1e-6)
  found = []
  for mean in MEANS:
    if name == "fed_avg_m":
      m = 0.9 * m + mean
      x = x + m
    else:
      m = mean if name == "fed_adagrad" else 0.9 * m + 0.1 * mean
      v = {
        "fed_adagrad": v + mean**2,
        "fed_yogi": v - 0.01 * mean**2 * np.sign(v - mean**2),
        "fed_adam": 0.99 * v + 0.01 * mean**2,
      }[name]
      x = x + 0.1 * m / (np.sqrt(v) + 1e-3)
    found.append(x)
  return found


def weights_after(algorithm, means):
  state, found = algorithm.initialize(SEED), []
  memories = algorithm.initialize_client(state, [SEED] * 2)
  for mean in means:
    # Two clients whose updates have this mean.
    data = [client(mean + 1), client(mean - 1)]
    (phase,) = algorithm.phases
    state, memories, _ = phase(state, memories, data)
    found.append(np.concatenate(state.weights))
  return found


class TestServerOptimizer:
  @pytest.mark.slow
  @pytest.mark.parametrize("name", server_optimizer_hparams.HPARAMS)
  def test_steps_are_those_of_the_papers(self, name):
    algorithm = build(server_optimizer=server_optimizers.build(name))
    found = weights_after(algorithm, MEANS)
    # Weights near 0 are differences of larger ones.
    assert_allclose(found, oracle_of(name), rtol=1e-5, atol=1e-6)

  @pytest.mark.slow
  def test_own_step_of_a_server_is_the_optimizers(self):
    def update_server(weights, mean_update, plaintext_sum, info):
      first, other = info.step(weights, mean_update)
      return first, 10 * other

    sgd = tff.learning.optimizers.build_sgdm(2.0)
    algorithm = build(server_optimizer=sgd, update_server=update_server)
    (found,) = weights_after(algorithm, [np.array([1.0, 3.0])])
    assert_allclose(found, [3, 70])


def needs(**reasons):
  return {"requirements": factories.AggregationRequirements(**reasons)}


def secure():
  hparams = aggregator_hparams.AggregatorHParams(clipping="fixed")
  return {
    "aggregator": factories.build("secure", hparams),
    "weighting": "uniform",
  }


SGD = {"server_optimizer": tff.learning.optimizers.build_sgdm(1.0)}


@pytest.mark.parametrize(
  "function, options, message",
  [
    (
      build,
      {**secure(), "num_clients": 5, "reports_losses": True},
      "reports_losses is not allowed with aggregator=secure",
    ),
    (build, {"reports_losses": True}, "reports_losses needs num_clients"),
    (build, {"aggregator": "secure"}, "ts.build_aggregator(name)"),
    (
      build,
      {"server_optimizer": "fed_adam"},
      "server_optimizer='fed_adam' must be an optimizer, such as the result of"
      " ts.build_server_optimizer(name)",
    ),
    (
      build,
      secure() | needs(plaintext_sums="the server is told a sum"),
      "aggregator=secure is not allowed for toy: the server is told a sum",
    ),
    (
      build,
      {**SGD, "update_server": lambda weights, *others: weights},
      "toy: its server does not add the mean of the clients' updates",
    ),
    (
      build,
      {
        **SGD,
        "update_server": lambda weights, mean, _, info: info.step(
          info.step(weights, mean), mean
        ),
      },
      "update_server must call info.step at most once",
    ),
    (
      build,
      SGD | needs(no_server_optimizer="it adds more"),
      "server_optimizer is not allowed for toy: it adds more",
    ),
    (
      build,
      SGD | needs(no_aggregation="nothing is shared"),
      "server_optimizer is not allowed for toy: nothing is shared",
    ),
    (server_optimizers.build, {"name": "fed_adm"}, "did you mean fed_adam"),
    (
      server_optimizers.build,
      {"name": "fed_adam", "momentum": 0.9},
      "hyper-parameter of fed_adam must be one of learning_rate, tau, beta_1,",
    ),
    (
      server_optimizers.build,
      {"name": "fed_yogi", "tau": 0.0},
      "tau=0.0 is not allowed",
    ),
  ],
)
def test_what_does_not_fit_is_refused(function, options, message, refusal):
  assert message in refusal(function, **options)


class TestMemory:
  """State that only the server has, and what it knows of a round."""

  def update_server(self, weights, mean_update, plaintext_sum, info):
    # What FedDyn's server keeps: the sum of |participants| / |clients| D.
    total = info.memory + info.num_counted / info.num_clients * mean_update[0]
    first, other = info.step(weights, mean_update)
    return (first + total, other), total

  @pytest.mark.slow
  def test_server_keeps_it(self):
    algorithm = build(
      num_clients=8,
      update_server=self.update_server,
      initial_memory=lambda seed: tf.constant([100.0]),
      train_client=train_empty_as_well,
      weighting="uniform",
    )
    state = algorithm.initialize(SEED)
    memories = algorithm.initialize_client(state, [SEED] * 2)
    (phase,) = algorithm.phases
    data = [client([2, 0]), client([6, 0])]
    state, memories, _ = phase(state, memories, data)
    # 100 + 2 / 8 * 4; 1 + 4 + 101.
    assert state.memory.tolist() == [101]
    assert np.concatenate(state.weights).tolist() == [106, 1]
    # One has nothing, one counts.
    data = [client([2, 0], size=0), client([6, 0])]
    state, _, _ = phase(state, memories, data)
    assert state.memory.tolist() == [101.75]


@pytest.mark.slow
class TestClientsWithoutExamples:
  """They count nowhere, also where all others count alike."""

  def test_server_that_cannot_work_without_clients_is_not_asked(self):
    algorithm = build(
      train_client=train_empty_as_well,
      # TensorFlow raises at a matrix that has no inverse.
      update_server=lambda weights, mean_update, plaintext_sum, info: (
        weights[0] * tf.linalg.inv([[info.num_counted]])[0],
        weights[1],
      ),
    )
    nobody, someone = client([0, 0], size=0), client([0, 0])
    for data, first_weight in (([nobody], 1), ([nobody, someone] * 2, 0.5)):
      ((weights, _, _),) = first_round(algorithm, data)
      assert weights.tolist() == [first_weight, 1]

  def test_loss_of_what_is_personal_does_not_count(self):
    def personalize_client(weights, memory, data, round_num):
      result = train_empty_as_well(weights, memory, data, round_num)
      return algorithm_lib.PersonalResult(memory, result.loss)

    algorithm = build(
      weighting="uniform",
      train_client=None,
      personalize_client=personalize_client,
    )
    data = [client([0, 0], loss=3), client([0, 0], size=0)]
    ((weights, _, metrics),) = first_round(algorithm, data)
    assert metrics["loss"] == 3 and weights.tolist() == [1, 1]
