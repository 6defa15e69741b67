"""Rounds of an algorithm: which values change, and bit-identical repetition."""

import types

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tff_shift.execution import local as local_execution
from tff_shift.learning import evaluation
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import client_slots
from tff_shift.simulation.engine import rounds
from tff_shift.testing import applicability
from tff_shift.testing import forms
from tff_shift.testing import running
from tff_shift.testing.applicability import applies_if
from tff_shift.testing.applicability import has_phases


@pytest.fixture(scope="module")
def run(built, data):
  """The states at the start and after each of two rounds, and the metrics."""
  current = running.start(built.algorithm, data)
  states, metrics = [running.snapshot(current)], []
  for _ in range(2):
    metrics.append(running.step(current))
    states.append(running.snapshot(current))
  return types.SimpleNamespace(states=states, metrics=metrics)


def parted(built, weights):
  """Separates a server's weights from those that no round changes."""
  names = built.functions.fixed_weights
  if not names:
    return weights, ()
  moving = [v for k, v in weights._asdict().items() if k not in names]
  return moving, [getattr(weights, name) for name in names]


class TestRounds:
  @pytest.mark.slow
  @applies_if(has_phases)
  def test_two_rounds_move_all_weights(self, built, run, compare):
    moved = []
    for before, after in zip(run.states, run.states[1:], strict=False):
      shared, fixed = zip(
        *(parted(built, state[0].weights) for state in (before, after)),
        strict=True,
      )
      assert compare.equal_bits(*fixed)
      kept = before[1], after[1]
      # Weights are shared or, without sharing, personal.
      pairs = zip(
        *map(tf.nest.flatten, shared if tf.nest.flatten(shared) else kept),
        strict=True,
      )
      moved.append([])
      for old, new in pairs:
        moved[-1].append(np.any(old != new))
        assert np.all(np.isfinite(new))
      if tf.nest.flatten(kept):
        for old, new in zip(*kept, strict=True):
          flat = tf.nest.flatten(old), tf.nest.flatten(new)
          assert any(np.any(o != n) for o, n in zip(*flat, strict=True))
    # A round of clustering moves no model.
    assert np.all(np.any(moved, axis=0))
    assert [int(state[0].round_num) for state in run.states] == [0, 1, 2]
    for metrics in run.metrics:
      assert np.isfinite(metrics["loss"])
      assert metrics["num_clients"] == 4

  def test_same_seeds_give_the_same_bits(self, built, data, run, compare):
    again = running.start(built.algorithm, data)
    for state in run.states[1:]:
      running.step(again)
      assert compare.equal_bits(running.snapshot(again), state)

  @applies_if(applicability.has_weights)
  def test_other_seed_gives_other_weights(self, built, data, run, compare):
    seed = running.RUN_SEED + 1
    other = running.start(
      built.algorithm,
      [
        client._replace(seed=randomness.client_seed(seed, position))
        for position, client in enumerate(data)
      ],
      run_seed=seed,
    )
    after = run.states[0]
    if compare.equal_bits(running.snapshot(other), after):
      # Some values start from 0 and depend on the seed after a round.
      running.step(other)
      after = run.states[1]
    assert not compare.equal_bits(running.snapshot(other), after)

  @applies_if(applicability.trains)
  def test_batches_differ_from_round_to_round(self, built, data, run, compare):
    (server_state, client_states), _, _ = run.states

    def trained(round_num):
      """The states after the surveys and the training of a round."""
      state = server_state._replace(round_num=np.int32(round_num))
      clients = list(client_states)
      for phase in built.algorithm.phases[: len(built.functions.surveys) + 1]:
        state, clients, _ = phase(state, clients, data)
      return state.weights, clients

    assert not compare.equal_bits(trained(0), trained(7))

  def test_resumed_run_gives_the_same_bits(
    self, built, data, run, compare, tmp_path
  ):
    flat = tf.nest.flatten(run.states[1])
    np.savez(tmp_path / "state.npz", *flat)
    with np.load(tmp_path / "state.npz") as stored:
      arrays = [stored[f"arr_{i}"] for i in range(len(flat))]
    # A restarted run knows the structure, and the file has the values.
    resumed = running.start(built.algorithm, data, run_seed=running.RUN_SEED)
    server_state, client_states = tf.nest.pack_sequence_as(
      running.snapshot(resumed), arrays
    )
    resumed.server_state = server_state
    resumed.client_states = list(client_states)
    resumed.round_num = 1
    running.step(resumed)
    assert compare.equal_bits(running.snapshot(resumed), run.states[2])

  @applies_if(has_phases)
  def test_client_that_was_not_sampled_is_untouched(
    self, built, data, other_data, compare
  ):
    half = running.start(built.algorithm, data, participation=0.5)
    chosen = rounds.sample_clients(4, 0.5, running.RUN_SEED, 0)
    left_out = sorted({0, 1, 2, 3} - set(chosen))
    before = running.snapshot(half)
    assert running.step(half)["num_clients"] == 2
    after = running.snapshot(half)
    # A client without a round has its first state, which may depend on the
    # current server state.
    first = built.algorithm.initialize_client(
      half.server_state, [data[client].seed for client in left_out]
    )
    for client, state in zip(left_out, first, strict=True):
      assert compare.equal_bits(after[1][client], state)
    for client in chosen:
      if not built.algorithm.is_stateless:
        assert not compare.equal_bits(before[1][client], after[1][client])
    # Its data are not used either.
    changed = list(data)
    for client in left_out:
      changed[client] = other_data[client]._replace(seed=data[client].seed)
    again = running.start(built.algorithm, changed, participation=0.5)
    running.step(again)
    assert compare.equal_bits(running.snapshot(again), after)

  @applies_if(has_phases)
  def test_round_of_clients_without_examples_leaves_the_server_as_it_was(
    self, built, run, client_data, compare
  ):
    before, states = run.states[1]
    data = [client_data.make_empty(built.algorithm, i) for i in range(4)]
    server_state, states, metrics = one_round(
      built.algorithm, before, states, running.at_round(data, 1)
    )
    assert server_state.round_num == before.round_num + 1
    assert compare.equal_bits(
      server_state._replace(round_num=before.round_num), before
    )
    for measured in metrics:
      # The mean of no losses.
      assert np.isnan(measured["loss"])
      assert (measured["num_clients"], measured["num_diverged"]) == (4, 0)
    for state in tf.nest.flatten(states):
      assert np.all(np.isfinite(state))

  @applies_if(applicability.allows_padding)
  def test_padding_that_is_allowed_changes_no_weight(
    self, built, data, run, evaluation_data, compare
  ):
    server_state, states = run.states[1]
    results = [
      (
        one_round(built.algorithm, server_state, states, examples),
        built.algorithm.evaluate_each_client(
          server_state, list(states), examples, tests
        ),
      )
      for examples, tests in (
        (data, evaluation_data),
        ([*map(padded, data)], [*map(padded, evaluation_data)]),
      )
    ]
    rounds, evaluations = zip(*results, strict=True)
    assert compare.equal_bits(*rounds)
    # Some processors add up the losses of more rows in another order.
    compare.assert_close(*evaluations, 1e-6)

  @applies_if(has_phases)
  def test_client_without_examples_counts_nowhere(
    self, built, data, run, client_data, compare
  ):
    before, states = run.states[1]
    found = []
    for others in ([], [client_data.make_empty(built.algorithm, 1)]):
      server_state, _, metrics = one_round(
        built.algorithm,
        before,
        [states[0], states[2], states[3], *states[1 : 1 + len(others)]],
        running.at_round([data[0], data[2], data[3], *others], 1),
      )
      found.append((server_state, [each["loss"] for each in metrics]))
    compare.assert_close(*found, 1e-6)


def padded(data):
  """Returns data with rows that are no examples, and unlike them."""
  num_rows, generator = 3, np.random.default_rng(len(data.y))
  shape = num_rows, *data.x.shape[1:]
  rows = generator.normal(5.0, 9.0, shape).astype(data.x.dtype)
  classes = generator.integers(0, 3, num_rows).astype(data.y.dtype)
  return data._replace(
    x=np.concatenate([data.x, rows]), y=np.concatenate([data.y, classes])
  )


def one_round(algorithm, server_state, client_states, data):
  """Runs the phases of a round; metrics are a list."""
  states, metrics = list(client_states), []
  for phase in algorithm.phases:
    server_state, states, measured = phase(server_state, states, data)
    metrics.append(measured)
  return server_state, states, metrics


@pytest.mark.slow
class TestWorkAlone:
  """The pure functions behave outside of TFF as inside."""

  @applies_if(has_phases)
  def test_a_round_of_one_client(self, built, data, run, run_in_graph, compare):
    server_state, client_states = run.states[1]
    functions, phases = built.functions, built.algorithm.phases
    (client,) = running.at_round([data[2]], 1)
    state, client_state = server_state, client_states[2]

    def add(weights, mean_update, _, info):
      return info.step(weights, mean_update)

    aggregating = [*functions.surveys]
    if functions.train_client is not None:
      aggregating.append((functions.train_client, functions.update_server))
    for (work, update_server), phase in zip(aggregating, phases, strict=False):
      new_state, (new_client_state,), metrics = phase(
        state, [client_state], [client]
      )
      alone = run_in_graph(
        work, state.weights, client_state, client, server_state.round_num
      )
      expected = run_in_graph(
        running.with_info(update_server or add),
        state.weights,
        alone.update,
        client_slots.total([alone.plaintext_sum], forms.NUM_CLIENTS),
        server_state.round_num,
        state.memory,
      )
      if functions.initial_memory is not None:
        expected, memory = expected
        compare.assert_close(new_state.memory, memory, 1e-6)
      compare.assert_close(new_state.weights, expected, 1e-6)
      compare.assert_close(new_client_state, alone.client_state, 1e-6)
      compare.assert_close(metrics["loss"], alone.loss, 1e-6)
      state, client_state = new_state, new_client_state
    if functions.personalize_client is None:
      assert len(phases) == len(aggregating)
      return
    new_state, (new_client_state,), metrics = phases[-1](
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
      [
        (
          server_state.seed if functions.starts_alike else client.seed,
          server_state.weights,
        )
        for client in data
      ],
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

    calls = [
      (server_state.weights, *each)
      for each in zip(client_states, data, evaluation_data, strict=True)
    ]
    *others, examples = calls[0]
    relabelled = examples._replace(y=(examples.y + 1) % 3)
    *logits, of_other_classes = run_for_each(
      predict, [*calls, (*others, relabelled)]
    )
    check_metrics(metrics, logits, evaluation_data)
    # Predictions do not use the classes of the examples.
    np.testing.assert_array_equal(of_other_classes, logits[0])

  @applies_if(applicability.has_server_predictions)
  def test_evaluation_of_the_server(
    self, built, data, evaluation_data, run, run_in_graph, run_for_each
  ):
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
  """Compares metrics with NumPy's, computed from logits."""
  assert tuple(metrics) == running.METRICS
  per_domain = [[] for _ in examples[0].domain_sizes]
  for rows, client in zip(logits, examples, strict=True):
    of_truth = rows[np.arange(len(client.y)), client.y].astype(np.float64)
    losses = scipy.special.logsumexp(np.float64(rows), axis=1) - of_truth
    # Classes that cannot be predicted have no finite loss.
    losses[of_truth == evaluation.NO_LOGIT] = np.nan
    right = rows.argmax(axis=1) == client.y
    ends = np.cumsum(client.domain_sizes)[:-1]
    for domain, part in enumerate(
      zip(np.split(right, ends), np.split(losses, ends), strict=True)
    ):
      if part[0].size:
        per_domain[domain].append(part)
  for domain, parts in enumerate(per_domain):
    found = {name: metrics[name][domain] for name in running.METRICS}
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
    losses = np.concatenate([p[1] for p in parts])
    losses = losses[~np.isnan(losses)]
    expected = losses.mean() if losses.size else np.nan
    np.testing.assert_allclose(found["loss"], expected, 1e-5)


@pytest.mark.slow
@pytest.mark.cpp
def test_round_agrees_with_the_cpp_executor(
  built, data, evaluation_data, compare
):
  algorithm = built.algorithm
  run = running.start(algorithm, data)
  running.step(run)
  server_state, client_states = running.snapshot(run)
  later = running.at_round(data, 1)

  def run_and_evaluate():
    done = one_round(algorithm, server_state, client_states, later)
    state, states, _ = done
    evaluations = [
      algorithm.evaluate_clients(state, states, later, evaluation_data)
    ]
    if algorithm.evaluate_server:
      evaluations.append(
        algorithm.evaluate_server(state, later, evaluation_data[1])
      )
    return done, evaluations

  here = run_and_evaluate()
  with local_execution.local_context():
    there = run_and_evaluate()
  compare.assert_close(here, there, 1e-5)
