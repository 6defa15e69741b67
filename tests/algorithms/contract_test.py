"""What every algorithm owes to the template, whatever it does.

A new file in `tff_shift/algorithms` is tested here without a change.
"""

import collections
import dataclasses
import functools
import inspect
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift import algorithms
from tff_shift.execution import local as local_execution
from tff_shift.learning import adaptation
from tff_shift.learning import aggregation
from tff_shift.learning import local_training
from tff_shift.learning import periods
from tff_shift.learning import process
from tff_shift.learning import randomness
from tff_shift.simulation import rounds

RUN_SEED = 5
# What the clients of a scenario have.
KINDS = {
  "evolving": {local_training.ClientData},
  "guidance": {local_training.ClientData},
  "online_adaptation": {adaptation.AdaptationData},
  "dynamic_personalization": {
    local_training.ClientData,
    periods.PeriodData,
  },
}
METRICS = (
  "accuracy",
  "pooled_accuracy",
  "loss",
  "not_finite",
  "num_examples",
)


@pytest.fixture(scope="module")
def evaluation_data(make_client):
  """The source domains and the next; some clients lack a domain."""
  sizes = [[3, 2, 4, 6], [2, 0, 5, 3], [0, 0, 0, 7], [4, 1, 2, 0]]
  return [make_client(10 + i, each) for i, each in enumerate(sizes)]


def trains(name):
  """Whether clients train on batches."""
  return hasattr(algorithms.get(name).HParams(), "batch_size")


@pytest.fixture(scope="module")
def data(built, client_data):
  """The data of four clients of different sizes."""
  return [client_data.make(built.algorithm, i, more=i) for i in range(4)]


@pytest.fixture(scope="module")
def other_data(built, client_data):
  return [client_data.make(built.algorithm, 20 + i, more=i) for i in range(4)]


def step(run):
  """Runs a round; streams have moved on since the round before."""
  run.data = at_round(run.data, run.round_num)
  return run.step()


def at_round(data, round_num):
  if "timestep" not in data[0]._fields:
    return data
  return [each._replace(timestep=np.int32(round_num + 1)) for each in data]


def start(algorithm, data, run_seed=RUN_SEED, participation=1.0):
  return rounds.Rounds(
    algorithm, data, run_seed=run_seed, participation=participation
  )


def snapshot(run):
  """Returns the states of a run as NumPy arrays."""
  return tf.nest.map_structure(
    np.array, (run.server_state, tuple(run.client_states))
  )


@pytest.fixture(scope="module")
def run(built, data):
  """The states at the start and after each of two rounds, and the metrics."""
  running = start(built.algorithm, data)
  states, metrics = [snapshot(running)], []
  for _ in range(2):
    metrics.append(step(running))
    states.append(snapshot(running))
  return types.SimpleNamespace(states=states, metrics=metrics)


class TestForm:
  def test_file_ends_in_a_record_of_functions(self, built):
    work = algorithms.get(built.name).work
    assert list(inspect.signature(work).parameters) == ["model", "hparams"]
    assert isinstance(built.functions, process.Work)
    assert built.algorithm.name == built.name

  def test_clients_take_what_they_have_in_every_scenario(
    self, built, client_data
  ):
    for scenario in algorithms.get(built.name).SCENARIOS:
      assert client_data.kind(built.algorithm) in KINDS[scenario]

  def test_phases_have_the_form_of_the_template(
    self, built, model, client_data
  ):
    algorithm = built.algorithm
    server_type = algorithm.initialize.type_signature.result
    clients_type = algorithm.initialize_client.type_signature.result
    assert server_type.placement is tff.SERVER
    assert clients_type.placement is tff.CLIENTS
    assert algorithm.is_stateless == (
      not tff.structure.flatten(clients_type.member)
    )
    examples = client_data.expected_type(algorithm, model)
    for phase in algorithm.phases:
      state, client_states, data = phase.type_signature.parameter
      new_state, new_client_states, metrics = phase.type_signature.result
      assert state == new_state == server_type
      assert client_states == new_client_states == clients_type
      assert data == tff.FederatedType(examples, tff.CLIENTS)
      assert metrics.placement is tff.SERVER
      assert metrics.member["loss"] == tff.TensorType(np.float32)

  def test_request_is_answered_with_a_state_of_a_client(self, built):
    algorithm = built.algorithm
    if algorithm.request is None:
      pytest.skip("clients cannot ask for a state")
    signature = algorithm.request.type_signature
    state, content = signature.parameter
    assert state == algorithm.initialize.type_signature.result
    assert content.placement is tff.SERVER
    assert signature.result == tff.FederatedType(
      algorithm.initialize_client.type_signature.result.member, tff.SERVER
    )

  def test_evaluations_have_the_form_of_the_template(
    self, built, model, client_data
  ):
    algorithm = built.algorithm
    state = algorithm.initialize.type_signature.result
    client_states = algorithm.initialize_client.type_signature.result
    examples = client_data.expected_type(algorithm, model)
    to_predict = local_training.data_type(model, built.num_domains)
    sums = tff.TensorType(np.float32, [built.num_domains])
    at_server = tff.FederatedType(
      tff.StructWithPythonType(
        [(name, sums) for name in METRICS], collections.OrderedDict
      ),
      tff.SERVER,
    )
    at_clients = [
      tff.FederatedType(each, tff.CLIENTS) for each in (examples, to_predict)
    ]
    signature = algorithm.evaluate_clients.type_signature
    assert list(signature.parameter) == [state, client_states, *at_clients]
    assert signature.result == at_server
    if algorithm.evaluate_server is not None:
      signature = algorithm.evaluate_server.type_signature
      assert list(signature.parameter) == [
        state,
        at_clients[0],
        tff.FederatedType(to_predict, tff.SERVER),
      ]
      assert signature.result == at_server


def form(name, functions):
  """What the template has to build for an algorithm: all that is not default.

  Algorithms of one form differ in their functions of tensors, and not in the
  federated computations around them.
  """
  defaults = process.Work._field_defaults
  examples_type = functions.examples_type
  needs = dataclasses.asdict(algorithms.needs(name))
  return (
    {
      field
      for field, value in functions._asdict().items()
      if value is not defaults.get(field)
    },
    examples_type and examples_type.python_container,
    {need for need, reason in needs.items() if reason},
  )


@pytest.fixture(scope="session")
def first_of_its_form(model, contract_hparams):
  """Returns `first(name)`, the first of the algorithms of the same form."""

  @functools.cache
  def form_of(name):
    return form(name, algorithms.get(name).work(model, contract_hparams(name)))

  return lambda name: next(
    other for other in algorithms.names() if form_of(other) == form_of(name)
  )


@pytest.fixture(scope="module")
def of_a_form(built, first_of_its_form):
  """One algorithm of each form, for what only the template can do wrong."""
  first = first_of_its_form(built.name)
  if first != built.name:
    pytest.skip(f"the template does for it what it does for {first}")
  return built


@pytest.fixture(scope="session")
def aggregators():
  """All aggregators; `dp` without noise, at a norm that clips nothing."""
  unbounded = aggregation.AggregatorHParams(clipping="none", zeroing=False)
  hparams = {
    "dp": aggregation.AggregatorHParams(
      noise_multiplier=0.0, clipping="fixed", clipping_norm=1e6
    ),
    # With clipping they take their time to build.
    "secure": unbounded,
    "compressed": unbounded,
  }
  return {
    name: aggregation.build(name, hparams.get(name), clients_per_round=4)
    for name in aggregation.NAMES
  }


def refusal_of(built, factory, hparams):
  """Returns what is said against an aggregator; None where it fits."""
  try:
    aggregation.check(
      built.name, algorithms.needs(built.name), factory.traits, hparams
    )
  except ValueError as refusal:
    return str(refusal)
  return None


@pytest.mark.slow
class TestAggregators:
  @pytest.fixture(scope="class")
  def uniform(self, built, contract_hparams):
    """Hyper-parameters with which all clients count alike."""
    hparams = contract_hparams(built.name)
    if not hasattr(hparams, "client_weighting"):
      return hparams
    return dataclasses.replace(hparams, client_weighting="uniform")

  def test_algorithm_says_so_where_nothing_is_shared(self, built):
    algorithm = built.algorithm
    shares_nothing = algorithm.is_local or not algorithm.phases
    needs = algorithms.needs(built.name)
    assert bool(needs.nothing_shared) == shares_nothing

  @pytest.mark.parametrize("aggregator", aggregation.NAMES)
  def test_aggregator_that_does_not_fit_is_refused_with_a_reason(
    self, built, aggregators, model, uniform, aggregator
  ):
    factory = aggregators[aggregator]
    refusal = refusal_of(built, factory, uniform)
    if refusal is None:
      pytest.skip("it fits")
    # What the module says, `build` enforces.
    with pytest.raises(ValueError) as error:
      algorithms.build(built.name, model, uniform, aggregator=factory)
    assert str(error.value) == refusal
    reasons = dataclasses.astuple(algorithms.needs(built.name))
    assert refusal.partition(": ")[2] in reasons

  @pytest.mark.parametrize("aggregator", aggregation.NAMES)
  def test_aggregator_that_fits_averages_what_is_shared(
    self, of_a_form, aggregators, uniform, aggregator
  ):
    factory = aggregators[aggregator]
    if refusal_of(of_a_form, factory, uniform):
      pytest.skip("it is refused")
    server_type = of_a_form.algorithm.initialize.type_signature.result
    averaging = factory.create(
      server_type.member.weights, tff.TensorType(np.float32)
    )
    assert averaging.next.type_signature.result.result == tff.FederatedType(
      server_type.member.weights, tff.SERVER
    )

  @pytest.fixture(scope="class")
  def private(self, of_a_form, aggregators, model, uniform):
    """The algorithm with `dp`, to which all clients count alike."""
    if refusal_of(of_a_form, aggregators["dp"], uniform):
      pytest.skip("it refuses")
    return algorithms.build(
      of_a_form.name, model, uniform, aggregator=aggregators["dp"]
    )

  def test_private_mean_without_noise_is_the_mean(
    self, built, private, client_data, compare
  ):
    # Of equal sizes: whether sizes count or not, clients count alike.
    data = [client_data.make(built.algorithm, i) for i in range(4)]
    runs = [start(each, data) for each in (private, built.algorithm)]
    for each in runs:
      step(each)
    compare.assert_close(*[each.server_state.weights for each in runs], 1e-6)
    compare.assert_close(*[each.client_states for each in runs], 1e-6)

  def test_weights_are_refused_where_they_do_not_count(
    self, built, aggregators, model, uniform
  ):
    if not hasattr(uniform, "client_weighting"):
      pytest.skip("clients have no weight")
    with pytest.raises(ValueError, match="is not allowed"):
      algorithms.build(
        built.name,
        model,
        dataclasses.replace(uniform, client_weighting="num_examples"),
        aggregator=aggregators["dp"],
      )

  def test_sums_for_the_server_are_not_sent_where_clients_are_hidden(
    self, built, private
  ):
    if built.algorithm.evaluate_server is None:
      pytest.skip("the server has no model")
    weights = built.algorithm.initialize.type_signature.result.member.weights
    summarize = tff.tensorflow.computation(
      built.functions.summarize_client,
      weights,
      built.algorithm.phases[0].type_signature.parameter[2].member,
    )
    sends_sums = tff.structure.flatten(summarize.type_signature.result)
    assert (private.evaluate_server is None) == bool(sends_sums)


class TestRounds:
  def test_two_rounds_move_all_weights(self, built, run):
    if not built.algorithm.phases:
      pytest.skip("nothing moves")
    for before, after in zip(run.states, run.states[1:], strict=False):
      shared = before[0].weights, after[0].weights
      kept = before[1], after[1]
      # Weights are shared or, where nothing is, kept.
      for old, new in zip(
        *map(tf.nest.flatten, shared if tf.nest.flatten(shared) else kept),
        strict=True,
      ):
        assert np.any(old != new)
        assert np.all(np.isfinite(new))
      if tf.nest.flatten(kept):
        for old, new in zip(*kept, strict=True):
          flat = tf.nest.flatten(old), tf.nest.flatten(new)
          assert any(np.any(o != n) for o, n in zip(*flat, strict=True))
    assert [int(state[0].round_num) for state in run.states] == [0, 1, 2]
    for metrics in run.metrics:
      assert np.isfinite(metrics["loss"])
      assert metrics["num_clients"] == 4

  def test_same_seeds_give_the_same_bits(self, built, data, run, compare):
    again = start(built.algorithm, data)
    for state in run.states[1:]:
      step(again)
      assert compare.equal_bits(snapshot(again), state)

  def test_other_seed_gives_other_weights(self, built, data, run, compare):
    if built.algorithm.is_local and not trains(built.name):
      pytest.skip("there are no weights")
    seed = RUN_SEED + 1
    other = start(
      built.algorithm,
      [
        client._replace(seed=randomness.client_seed(seed, position))
        for position, client in enumerate(data)
      ],
      run_seed=seed,
    )
    assert not compare.equal_bits(snapshot(other), run.states[0])

  def test_batches_differ_from_round_to_round(self, built, data, run, compare):
    if not trains(built.name):
      pytest.skip("there are no batches")
    (server_state, client_states), _, _ = run.states
    (phase, *_) = built.algorithm.phases
    first = phase(server_state, list(client_states), data)
    later = phase(
      server_state._replace(round_num=np.int32(7)), list(client_states), data
    )
    assert not compare.equal_bits(
      (first[0].weights, first[1]), (later[0].weights, later[1])
    )

  def test_resumed_run_gives_the_same_bits(
    self, built, data, run, compare, tmp_path
  ):
    flat = tf.nest.flatten(run.states[1])
    np.savez(tmp_path / "state.npz", *flat)
    with np.load(tmp_path / "state.npz") as stored:
      arrays = [stored[f"arr_{i}"] for i in range(len(flat))]
    # A run that starts anew knows the structure, and the file the values.
    resumed = start(built.algorithm, data, run_seed=RUN_SEED)
    server_state, client_states = tf.nest.pack_sequence_as(
      snapshot(resumed), arrays
    )
    resumed.server_state = server_state
    resumed.client_states = list(client_states)
    resumed.round_num = 1
    step(resumed)
    assert compare.equal_bits(snapshot(resumed), run.states[2])

  def test_client_that_was_not_sampled_is_untouched(
    self, built, data, other_data, compare
  ):
    if not built.algorithm.phases:
      pytest.skip("nothing is done by any client")
    half = start(built.algorithm, data, participation=0.5)
    chosen = rounds.sample_clients(4, 0.5, RUN_SEED, 0)
    left_out = sorted({0, 1, 2, 3} - set(chosen))
    before = snapshot(half)
    assert step(half)["num_clients"] == 2
    after = snapshot(half)
    for client in left_out:
      assert compare.equal_bits(before[1][client], after[1][client])
    for client in chosen:
      if not built.algorithm.is_stateless:
        assert not compare.equal_bits(before[1][client], after[1][client])
    # Nor do its data count.
    changed = list(data)
    for client in left_out:
      changed[client] = other_data[client]._replace(seed=data[client].seed)
    again = start(built.algorithm, changed, participation=0.5)
    step(again)
    assert compare.equal_bits(snapshot(again), after)


@pytest.mark.slow
class TestWorkAlone:
  """The pure functions outside of TFF do what they do inside."""

  def test_a_round_of_one_client(self, built, data, run, run_in_graph, compare):
    server_state, client_states = run.states[1]
    functions, phases = built.functions, built.algorithm.phases
    if not phases:
      pytest.skip("a round has no phase")
    (client,) = at_round([data[2]], 1)
    state, (client_state,), metrics = phases[0](
      server_state, [client_states[2]], [client]
    )
    alone = run_in_graph(
      functions.train_client,
      server_state.weights,
      client_states[2],
      client,
      server_state.round_num,
    )
    compare.assert_close(
      state.weights,
      tf.nest.map_structure(np.add, server_state.weights, alone.update),
      1e-6,
    )
    compare.assert_close(client_state, alone.client_state, 1e-6)
    compare.assert_close(metrics["loss"], alone.loss, 1e-6)
    if functions.personalize_client is None:
      assert len(phases) == 1
      return
    new_state, (new_client_state,), metrics = phases[1](
      state, [client_state], [client]
    )
    alone = run_in_graph(
      functions.personalize_client,
      state.weights,
      client_state,
      client,
      server_state.round_num,
    )
    compare.assert_close(new_state.weights, state.weights, 0.0)
    compare.assert_close(new_client_state, alone.client_state, 1e-6)
    compare.assert_close(metrics["loss"], alone.loss, 1e-6)

  def test_initial_states(
    self, built, data, run, run_in_graph, run_for_each, compare
  ):
    server_state, client_states = run.states[0]
    functions = built.functions
    found = run_for_each(
      functions.initial_client_state,
      [(client.seed, server_state.weights) for client in data],
    )
    compare.assert_close(list(client_states), found, 1e-6)
    shapes = [np.shape(w) for w in tf.nest.flatten(server_state.weights)]
    assert shapes == [
      w.shape
      for w in tf.nest.flatten(
        run_in_graph(functions.initial_weights, data[0].seed)
      )
    ]

  def test_evaluation_of_clients(
    self, built, data, evaluation_data, run, run_for_each
  ):
    server_state, client_states = run.states[2]
    metrics = built.algorithm.evaluate_clients(
      server_state, list(client_states), data, evaluation_data
    )

    def predict(weights, state, data, examples):
      if built.functions.prepare_client is not None:
        state = built.functions.prepare_client(
          weights, state, data, tf.constant(2)
        )
      return built.functions.predict_as_client(weights, state, data, examples)

    logits = run_for_each(
      predict,
      [
        (server_state.weights, *each)
        for each in zip(client_states, data, evaluation_data, strict=True)
      ],
    )
    check_metrics(metrics, logits, evaluation_data)

  def test_evaluation_of_the_server(
    self, built, data, evaluation_data, run, run_in_graph, run_for_each
  ):
    if built.algorithm.evaluate_server is None:
      pytest.skip("the server has no model")
    server_state, _ = run.states[2]
    metrics = built.algorithm.evaluate_server(
      server_state, data, evaluation_data[1]
    )
    summaries = run_for_each(
      built.functions.summarize_client,
      [(server_state.weights, client) for client in data],
    )
    logits = run_in_graph(
      built.functions.predict_as_server,
      server_state.weights,
      tf.nest.map_structure(lambda *each: sum(each), *summaries),
      evaluation_data[1],
    )
    check_metrics(metrics, [logits], [evaluation_data[1]])


def check_metrics(metrics, logits, examples):
  """Compares metrics with those that NumPy computes from logits."""
  assert tuple(metrics) == METRICS
  per_domain = [[] for _ in examples[0].domain_sizes]
  for rows, client in zip(logits, examples, strict=True):
    rows = rows.astype(np.float64)
    highest = rows.max(axis=1)
    losses = (
      np.log(np.exp(rows - highest[:, np.newaxis]).sum(axis=1))
      + highest
      - rows[np.arange(len(client.y)), client.y]
    )
    right = rows.argmax(axis=1) == client.y
    ends = np.cumsum(client.domain_sizes)[:-1]
    for domain, part in enumerate(
      zip(np.split(right, ends), np.split(losses, ends), strict=True)
    ):
      if part[0].size:
        per_domain[domain].append(part)
  for domain, parts in enumerate(per_domain):
    found = {name: metrics[name][domain] for name in METRICS}
    right = np.concatenate([p[0] for p in parts] or [[]])
    assert found["num_examples"] == right.size
    if not parts:
      assert np.isnan([found["accuracy"], found["loss"]]).all()
      continue
    assert 0 <= found["accuracy"] <= 1
    assert 0 <= found["pooled_accuracy"] <= 1
    np.testing.assert_allclose(
      found["accuracy"], np.mean([p[0].mean() for p in parts]), atol=1e-6
    )
    np.testing.assert_allclose(found["pooled_accuracy"], right.mean(), 1e-6)
    np.testing.assert_allclose(
      found["loss"], np.concatenate([p[1] for p in parts]).mean(), 1e-5
    )


@pytest.mark.slow
@pytest.mark.cpp
def test_round_agrees_with_the_cpp_executor(
  built, data, evaluation_data, compare
):
  algorithm = built.algorithm
  run = start(algorithm, data)
  step(run)
  server_state, client_states = snapshot(run)
  later = at_round(data, 1)

  def one_round():
    state, states, metrics = server_state, list(client_states), []
    for phase in algorithm.phases:
      state, states, measured = phase(state, states, later)
      metrics.append(measured)
    evaluations = [
      algorithm.evaluate_clients(state, states, later, evaluation_data)
    ]
    if algorithm.evaluate_server:
      evaluations.append(
        algorithm.evaluate_server(state, later, evaluation_data[1])
      )
    return state, states, metrics, evaluations

  here = one_round()
  with local_execution.local_context():
    there = one_round()
  compare.assert_close(here, there, 1e-5)
