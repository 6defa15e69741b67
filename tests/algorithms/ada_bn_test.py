"""AdaBN by hand, beside NumPy, and its limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import tff_shift
from tff_shift import algorithms
from tff_shift.algorithms import ada_bn
from tff_shift.algorithms import tent
from tff_shift.execution import local as local_execution
from tff_shift.learning import randomness
from tff_shift.models import modes
from tff_shift.serving import export
from tff_shift.simulation.engine import rounds

HParams = ada_bn.HParams
SEED = np.int32([1, 2])
CLOSE = {"rtol": 0, "atol": 1e-4}


@pytest.mark.parametrize(
  "number, expected", [(0.0, (3.0, 3.5)), (1e30, (0.25, 1.5))]
)
def test_limits_of_mix_have_their_bits(number, expected):
  pairs = np.float32([[3.0, 3.5], [0.25, 1.5]])
  found = ada_bn.mix(number, 4, *(modes.Moments(*pair) for pair in pairs))
  assert tuple(map(float, found)) == expected


@pytest.fixture(scope="module")
def predict(build, normalized_model, make_adapting_client):
  """Returns `predict(hparams, examples)` for algorithms of a batch."""
  client = make_adapting_client(0, 6, 8)

  def predict(hparams, examples):
    functions = build(hparams, model=normalized_model)
    weights = functions.initial_weights(SEED)
    state = functions.initial_client_state(SEED, weights)
    return functions.predict_as_client(weights, state, client, examples)

  return predict


class Numpy:
  """The model with given statistics, in float64."""

  def __init__(self, model):
    names = (*model.backbone.names, *model.head.names)
    weights = model.initial_weights(SEED)
    values = dict(zip(names, (*weights.backbone, *weights.head), strict=True))
    self.values = {key: np.float64(each) for key, each in values.items()}
    self.statistics = [np.float64(each) for each in model.statistics.values()]

  def features(self, x):
    return (
      np.float64(x) @ self.values["first/kernel"] + self.values["first/bias"]
    )

  def predict(self, x, mean, variance):
    normed = (self.features(x) - mean) / np.sqrt(variance + 1e-3)
    scaled = normed * self.values["norm/gamma"] + self.values["norm/beta"]
    hidden = np.maximum(scaled, 0)
    return hidden @ self.values["last/kernel"] + self.values["last/bias"]


@pytest.fixture(scope="module")
def by_numpy(normalized_model):
  return Numpy(normalized_model)


class TestBatch:
  @pytest.mark.slow
  @pytest.mark.parametrize("size", [30, 300])
  @pytest.mark.parametrize("number", [0.0, 16.0])
  def test_predictions_beside_numpy(
    self, predict, make_client, by_numpy, size, number
  ):
    """300 examples are more than models take at a time."""
    examples = make_client(3, [size])
    features = by_numpy.features(examples.x)
    share = size / (number + size)
    moments = [
      (1 - share) * old + share * new
      for old, new in zip(
        by_numpy.statistics,
        (features.mean(axis=0), features.var(axis=0)),
        strict=True,
      )
    ]
    assert_allclose(
      predict(HParams(source_examples=number), examples),
      by_numpy.predict(examples.x, *moments),
      **CLOSE,
    )

  def test_each_domain_is_a_batch(self, predict, make_client, domain_of):
    both = make_client(3, [8, 0, 12])
    first = domain_of(both, 0)
    assert_allclose(
      predict(HParams(), both)[:8], predict(HParams(), first), **CLOSE
    )


@pytest.fixture(scope="module")
def stream(build, normalized_model, make_adapting_client, make_client):
  """Returns `stream(sizes)`: batches, the last state, and its predictions."""
  functions = build(HParams(statistics_of="stream"), model=normalized_model)
  examples = make_client(9, [7])

  def stream(sizes, timesteps=None):
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

  return stream


class TestStream:
  @pytest.mark.slow
  def test_statistics_are_those_of_all_examples(self, stream, by_numpy):
    batches, state, x, logits = stream([5, 300, 2])
    features = by_numpy.features(np.concatenate(batches))
    moments = features.mean(axis=0), features.var(axis=0)
    assert_allclose(state.statistics, moments, **CLOSE)
    assert state.num_examples == 307
    assert_allclose(logits, by_numpy.predict(x, *moments), **CLOSE)

  @pytest.mark.slow
  def test_repeated_and_empty_time_steps_do_not_count(self, stream):
    _, expected, _, _ = stream([5, 4])
    _, found, _, _ = stream([5, 9, 4, 0], [1, 1, 2, 3])
    # Another batch, which did not count.
    assert found.num_examples == 14 - 5
    _, without, _, _ = stream([5, 4, 0])
    np.testing.assert_array_equal(expected.statistics, without.statistics)
    assert without.timestep == 2


@pytest.mark.slow
def test_saved_model_predicts_a_call_as_one_batch(
  normalized_model, context, make_adapting_client, by_numpy, tmp_path
):
  algorithm = algorithms.build(ada_bn, normalized_model)
  running = rounds.Rounds(
    algorithm, [make_adapting_client(0, 6, 8)], run_seed=3
  )
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
    features = by_numpy.features(part)
    assert_allclose(
      loaded.predict_as(0, part),
      by_numpy.predict(part, features.mean(axis=0), features.var(axis=0)),
      **CLOSE,
    )


@pytest.mark.slow
@pytest.mark.cpp
@pytest.mark.parametrize(
  "module, options",
  [
    (ada_bn, {"source_examples": 3.0}),
    (ada_bn, {"statistics_of": "stream"}),
    (tent, {"learning_rate": 0.1}),
  ],
  ids=["batch", "stream", "tent"],
)
def test_batches_agree_with_the_cpp_executor(
  module,
  options,
  normalized_model,
  context,
  make_adapting_client,
  make_client,
  compare,
):
  algorithm = algorithms.build(
    module, normalized_model, module.HParams(**options)
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
