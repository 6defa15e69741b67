"""AdaBN by hand, beside NumPy, and its limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import tff_shift
from tff_shift import algorithms
from tff_shift.algorithms import ada_bn
from tff_shift.execution import local as local_execution
from tff_shift.learning import randomness
from tff_shift.models import modes
from tff_shift.serving import export
from tff_shift.simulation.engine import rounds

STREAM = 6, 8
SEED = np.int32([1, 2])
CLOSE = {"rtol": 0, "atol": 1e-4}


@pytest.mark.parametrize(
  "number, expected", [(0.0, (3.0, 3.5)), (1e30, (0.25, 1.5))]
)
def test_of_mix_have_their_bits(number, expected):
  pairs = np.float32([[3.0, 3.5], [0.25, 1.5]])
  found = ada_bn.mix(number, 4, *(modes.Moments(*pair) for pair in pairs))
  assert tuple(map(float, found)) == expected


@pytest.fixture(scope="module")
def predict(build, normalized_model, client):
  """Returns `predict(examples, **options)`."""

  def predict(examples, **options):
    functions = build(ada_bn.HParams(**options), model=normalized_model)
    weights = functions.initial_weights(SEED)
    return functions.predict_as_client(weights, (), client, examples)

  return predict


@pytest.mark.slow
@pytest.mark.parametrize("size", [30, 300])
@pytest.mark.parametrize("number", [0.0, 16.0])
def test_batch_predictions_beside_numpy(
  predict,
  make_client,
  normalized_model,
  normalized_weights,
  oracle,
  size,
  number,
):
  """300 examples are more than models take at a time."""
  examples = make_client(3, [size])
  share = size / (number + size)
  moments = [
    (1 - share) * old + share * new
    for old, new in zip(
      normalized_model.statistics.values(),
      oracle.moments(normalized_weights, examples.x),
      strict=True,
    )
  ]
  assert_allclose(
    predict(examples, source_examples=number),
    oracle.normalize(normalized_weights, examples.x, moments),
    **CLOSE,
  )


def test_each_domain_is_a_batch(predict, make_client, domain_of):
  both = make_client(3, [8, 0, 12])
  assert_allclose(predict(both)[:8], predict(domain_of(both, 0)), **CLOSE)


@pytest.fixture(scope="module")
def adapt(build, normalized_model, make_adapting_client, make_client):
  """Returns `adapt(sizes)`: batches, the last state, and its predictions."""
  functions = build(
    ada_bn.HParams(statistics_of="stream"), model=normalized_model
  )
  examples = make_client(9, [7])

  def adapt(sizes, timesteps=None):
    state = functions.initial_client_state(SEED, ())
    batches = []
    for timestep, size in enumerate(sizes, 1):
      data = make_adapting_client(timestep, 6, size)._replace(
        timestep=np.int32(timesteps[timestep - 1] if timesteps else timestep)
      )
      batches.append(data.stream_x)
      result = functions.train_client((), state, data, 0)
      state = result.client_state
      assert np.isfinite(result.loss)
    logits = functions.predict_as_client((), state, data, examples)
    return batches, state, examples.x, logits

  return adapt


@pytest.mark.slow
def test_stream_statistics_are_those_of_all_examples(
  adapt, normalized_weights, oracle
):
  batches, state, x, logits = adapt([5, 300, 2])
  moments = oracle.moments(normalized_weights, np.concatenate(batches))
  assert_allclose(state.statistics, moments, **CLOSE)
  assert state.num_examples == 307
  expected = oracle.normalize(normalized_weights, x, moments)
  assert_allclose(logits, expected, **CLOSE)


@pytest.mark.slow
def test_stream_repeated_and_empty_time_steps_do_not_count(adapt):
  _, expected, _, _ = adapt([5, 4])
  _, found, _, _ = adapt([5, 9, 4, 0], [1, 1, 2, 3])
  # Another batch, which did not count.
  assert found.num_examples == 14 - 5
  _, without, _, _ = adapt([5, 4, 0])
  np.testing.assert_array_equal(expected.statistics, without.statistics)
  assert without.timestep == 2


@pytest.mark.slow
def test_saved_model_predicts_a_call_as_one_batch(
  normalized_model, context, client, normalized_weights, oracle, tmp_path
):
  algorithm = algorithms.build(ada_bn, normalized_model)
  running = rounds.Rounds(algorithm, [client], run_seed=3)
  export.export(
    algorithm,
    running.server_state,
    running.states,
    running.data,
    tmp_path / "model",
    clients=[0],
  )
  loaded = tff_shift.load(tmp_path / "model")
  x = np.random.default_rng(1).normal(size=(300, 5)).astype(np.float32)
  for part in (x, x[:20]):
    assert_allclose(
      loaded.predict_as(0, part),
      oracle.normalize(normalized_weights, part),
      **CLOSE,
    )


@pytest.mark.slow
@pytest.mark.cpp
@pytest.mark.parametrize(
  "name, options",
  [
    ("ada_bn", {"source_examples": 3.0}),
    ("ada_bn", {"statistics_of": "stream"}),
    ("tent", {"learning_rate": 0.1}),
  ],
)
def test_batches_agree_with_the_cpp_executor(
  name,
  options,
  normalized_model,
  context,
  make_adapting_client,
  make_client,
  compare,
):
  algorithm = algorithms.build(
    name, normalized_model, algorithms.hparams(name, **options)
  )
  data = [make_adapting_client(i, 6, 8 + i) for i in range(3)]
  examples = [make_client(i, [8 + i]) for i in range(3)]

  def run_and_evaluate():
    state = algorithm.initialize(randomness.server_seed(0))
    clients = algorithm.initialize_client(state, [each.seed for each in data])
    for phase in algorithm.phases:
      state, clients, _ = phase(state, clients, data)
    return clients, algorithm.evaluate_clients(state, clients, data, examples)

  here = run_and_evaluate()
  with local_execution.local_context():
    there = run_and_evaluate()
  compare.assert_close(here, there, 1e-5)
