"""Tests of runs on drifting streams: what is measured, and what is not seen."""

import operator

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import trees
from tests.fixtures.refusals import refused
from tests.fixtures.runs import Record
from tests.fixtures.runs import stop_and_repeat
from tff_shift import algorithms
from tff_shift.algorithms import atlas
from tff_shift.algorithms import fed_ade
from tff_shift.algorithms import fix_lr
from tff_shift.algorithms import fth
from tff_shift.algorithms import lame
from tff_shift.algorithms import prior_correction
from tff_shift.algorithms import source
from tff_shift.algorithms import tent
from tff_shift.algorithms.parts import adaptation
from tff_shift.data import client_dataset
from tff_shift.data import examples as examples_lib
from tff_shift.data.shifts import online_adaptation as online_adaptation_data
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.models.networks import mlp
from tff_shift.scenarios.online_adaptation import rate_controls
from tff_shift.scenarios.online_adaptation import (
  simulation as online_adaptation,
)
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.usefixtures("context")

RUN_SEED = 4
NUM_CLIENTS = 4
NUM_TIMESTEPS = 3
BATCH = 20
ETA_MIN, ETA_MAX = 0.2, 1.0


def make_examples(num_examples, seed) -> examples_lib.Examples:
  """Points around a centre for each class."""
  generator = np.random.default_rng(seed)
  y = np.arange(num_examples, dtype=np.int32) % 3
  x = generator.normal(size=(num_examples, 5)) + 2 * np.eye(5)[y]
  return examples_lib.Examples(x.astype(np.float32), y)


DRAWN = mlp.build((5,), num_classes=3, width=8, head_width=6)


@pytest.fixture(scope="module")
def weights(run_in_graph):
  """Weights that a little pre-training gives."""
  examples = make_examples(60, 9)
  seed = np.array([3, 4], np.int32)
  hparams = hyperparameters.LocalHParams(learning_rate=0.1)

  def pretrain(x, y, seed):
    data = client_dataset.ClientDataset(x, y, tf.shape(y), tf.size(y), seed)
    return local_training.train_on_pool(
      DRAWN.predict,
      DRAWN.initial_weights(seed),
      data,
      30,
      seed,
      hparams,
    ).weights

  return run_in_graph(pretrain, examples.x, examples.y, seed)


@pytest.fixture(scope="module")
def model(weights):
  names = tf.nest.flatten(DRAWN.weight_names())
  values = tf.nest.flatten(weights)
  return split_model.with_weights(DRAWN, dict(zip(names, values, strict=True)))


def make_streams(
  kind=online_adaptation_data.Streams, omega=(0, 0.3, 0.9, 0.2)
) -> online_adaptation_data.Streams:
  return kind(
    make_examples(90, 0),
    3,
    np.array(omega),
    num_clients=NUM_CLIENTS,
    samples_per_step=BATCH,
    dirichlet=0.5,
    seed=1,
  )


DEPLOYMENT = online_adaptation.Deployment(
  [make_examples(9, [1, client]) for client in range(NUM_CLIENTS)],
  np.array([[0.8, 0.1, 0.1], [0.1, 0.7, 0.1], [0.1, 0.2, 0.8]], np.float32),
)

# What each builds its algorithm from; quick, and far from standing still.
HPARAMS = {
  fed_ade: fed_ade.HParams(
    batch_size=4,
    local_epochs=3,
    head_epochs=1,
    eta_min=ETA_MIN,
    eta_max=ETA_MAX,
  ),
  fth: fth.HParams(),
  atlas: atlas.HParams(
    batch_size=4, local_epochs=1, smallest_rate=0.1, num_learners=2
  ),
  source: source.HParams(),
}


@pytest.fixture(scope="module")
def build(model):
  """Returns `build(module)`; an algorithm is built once for all tests."""
  built = {}

  def build_once(module):
    if module not in built:
      built[module] = algorithms.build(module, model, HPARAMS[module])
    return built[module]

  return build_once


def start(
  algorithm, client_streams=None, **options
) -> online_adaptation.Adaptation:
  return online_adaptation.Adaptation(
    algorithm,
    client_streams or make_streams(),
    DEPLOYMENT,
    run_seed=RUN_SEED,
    **options,
  )


def state_bits(run: online_adaptation.Adaptation) -> list[bytes]:
  return trees.bits((run.rounds.server_state, run.rounds.client_states))


def assert_equal(steps, other_steps):
  for step, other in zip(steps, other_steps, strict=True):
    for value, expected in zip(step, other, strict=True):
      np.testing.assert_array_equal(value, expected)
      assert np.asarray(value).dtype == np.asarray(expected).dtype


class ShortStreams(online_adaptation_data.Streams):
  """Streams of which a batch lacks a class."""

  def batch(self, client, timestep):
    x, y = super().batch(client, timestep)
    return examples_lib.Examples(x, y[: BATCH - (client == 2)])


class TestBadData:
  def test_stream_is_refused_in_its_step(self, typed_algorithm):
    with refused(r"^y of client 2: .* \[20\].* \[19\]$"):
      start(typed_algorithm(DRAWN), make_streams(ShortStreams))

  @pytest.mark.slow
  def test_labelled_examples_are_refused_first(self, build):
    initial = list(DEPLOYMENT.initial)
    initial[1] = initial[1]._replace(y=initial[1].y + 1)
    with refused(r"^y of client 1: classes must lie in"):
      online_adaptation.Adaptation(
        build(source),
        make_streams(),
        DEPLOYMENT._replace(initial=initial),
        run_seed=RUN_SEED,
      )

  def test_pool_of_two_lengths_is_refused(self):
    pool = make_examples(9, 0)
    with refused(r"9 examples and 8 classes"):
      online_adaptation_data.Streams(
        pool._replace(y=pool.y[1:]),
        3,
        np.array([0, 1]),
        num_clients=2,
        samples_per_step=2,
      )


@pytest.mark.slow
def test_clients_see_the_data_of_the_client_and_the_step(build):
  run, client_streams = start(build(source)), make_streams()
  for timestep in (1, 3):
    for client, data in enumerate(run.data(timestep)):
      assert isinstance(data, adaptation.AdaptationData)
      assert data.timestep == timestep and data.timestep.dtype == np.int32
      initial = DEPLOYMENT.initial[client]
      for value, expected in (
        (data.stream_x, client_streams.batch(client, timestep).x),
        (data.x, initial.x),
        (data.y, initial.y),
        (data.confusion, DEPLOYMENT.confusion),
        (data.seed, randomness.client_seed(RUN_SEED, client)),
      ):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.slow
def test_predictions_of_before_the_adaptation_may_count(model):
  """Two time steps of a method, by what counts."""
  before, after = (
    [run.step(1), run.step(2)]
    for scored in ("before", "after")
    for hparams in [prior_correction.HParams(memory="history", scored=scored)]
    for run in [start(algorithms.build(prior_correction, model, hparams))]
  )
  for step, other in zip(before, after, strict=True):
    assert step.after == step.before == other.before != other.after
    np.testing.assert_array_equal(
      step.clients["accuracy"], step.clients["accuracy_before"]
    )
    # Estimates of label distributions are measured.
    np.testing.assert_allclose(step.estimates.sum(axis=1), 1, atol=1e-5)
  first, second = (step.estimates for step in before)
  assert first.shape == (NUM_CLIENTS, 3) and np.any(first != second)


@pytest.mark.long
@pytest.mark.parametrize(
  "module, hparams",
  [
    (tent, tent.HParams(adapted="all", learning_rate=0.1)),
    (prior_correction, prior_correction.HParams()),
  ],
  ids=["moments", "experts"],
)
def test_what_a_method_keeps_survives_a_stop(model, module, hparams, tmp_path):
  algorithm = algorithms.build(module, model, hparams)

  def run(folder, **options):
    return online_adaptation.run(
      algorithm,
      make_streams(),
      DEPLOYMENT,
      run_seed=RUN_SEED,
      checkpoint=checkpoints.Run(tmp_path / folder, "key", every=1),
      **options,
    )

  with pytest.raises(KeyboardInterrupt):
    run("stopped", callbacks=[Record(stop=2)])
  results = run("stopped"), run("whole")
  trees.assert_equal(
    *([each.client_states[c] for c in range(NUM_CLIENTS)] for each in results)
  )
  for name in ("accuracy", "loss_before", "loss"):
    assert results[0].mean(name) == results[1].mean(name)


@pytest.mark.slow
def test_batch_of_a_client_is_predicted_as_one(model, weights, run_in_graph):
  """300 examples are more than models take at a time, and no multiple."""
  client_streams = online_adaptation_data.Streams(
    make_examples(900, 0),
    3,
    np.array([0, 0.9]),
    num_clients=NUM_CLIENTS,
    samples_per_step=300,
    dirichlet=0.5,
    seed=1,
  )
  # Affinities with many neighbours, so that the batch changes predictions.
  hparams = lame.HParams(affinity="knn", num_neighbors=20)
  run = start(algorithms.build(lame, model, hparams), client_streams)
  accuracies = np.ravel(run.step(1).clients["accuracy"])
  functions = lame.build(model, hparams)

  def logits(client, size):
    x, y = client_streams.batch(client, 1)
    return run_in_graph(
      functions.predict_as_client,
      weights,
      (),
      run.data(1)[client],
      client_data.to_predict(x[:size], y[:size], [size]),
    )

  for client, accuracy in enumerate(accuracies):
    _, y = client_streams.batch(client, 1)
    right = np.argmax(logits(client, 300), axis=1) == y
    assert len(y) == len(right) == 300
    assert accuracy == pytest.approx(100 * right.mean(), abs=1e-3)
  # A batch that was cut would have other predictions.
  assert np.abs(logits(0, 300)[:256] - logits(0, 256)).max() > 0.1


@pytest.mark.slow
class TestFedAde:
  ROUNDS_PER_STEP = 3
  PARTICIPATION = 0.5

  def run(self, algorithm, streams=None, **options):
    return online_adaptation.run(
      algorithm,
      streams or make_streams(),
      DEPLOYMENT,
      run_seed=RUN_SEED,
      rounds_per_step=self.ROUNDS_PER_STEP,
      participation=self.PARTICIPATION,
      **options,
    )

  @pytest.fixture(scope="class")
  def algorithm(self, build):
    return build(fed_ade)

  @pytest.fixture(scope="class")
  def whole(self, algorithm):
    """What was measured in a run that never stops, by step."""
    run = start(
      algorithm,
      rounds_per_step=self.ROUNDS_PER_STEP,
      participation=self.PARTICIPATION,
    )
    return [run.step(timestep) for timestep in range(1, NUM_TIMESTEPS + 1)]

  def test_same_flags_give_the_same_numbers(self, algorithm, whole):
    record = Record()
    result = self.run(algorithm, callbacks=[record])
    told = [row[-1] for row in record.steps]
    assert [step.timestep for step in result.timesteps] == [1, 2, 3]
    assert [step.omega for step in result.timesteps] == [0.3, 0.9, 0.2]
    assert all(map(operator.is_, told, result.timesteps))
    assert_equal(result.timesteps, whole)
    assert result.seconds_per_round > 0

  def test_run_that_was_stopped_ends_as_one_that_was_not(
    self, algorithm, whole, tmp_path
  ):
    def run(record):
      return self.run(
        algorithm,
        callbacks=[record],
        checkpoint=checkpoints.Run(tmp_path / "run", "key", every=1),
      ).timesteps

    (_, stopped), (result, resumed), (_, again) = stop_and_repeat(run, 2)
    assert len(stopped.losses) == 2 * self.ROUNDS_PER_STEP
    for record in (resumed, again):
      # A run that was finished ends with the data of its last step, too.
      assert [each.data[0].timestep for each in record.ended] == [3]
      # The loss of each round of each step, once.
      assert [each[0] for each in record.losses] == list(range(1, 10))
      assert record.losses[: len(stopped.losses)] == stopped.losses
    # What was restored is told first.
    told = [row[-1] for row in resumed.steps]
    assert [step.timestep for step in told] == [1, 2, 3]
    assert all(map(operator.is_, result, told))
    assert_equal(result, whole)

  def test_run_that_takes_more_time_steps_ends_as_one_that_had_them(
    self, algorithm, whole, tmp_path
  ):
    def run(*omega):
      return self.run(
        algorithm,
        make_streams(omega=omega),
        checkpoint=checkpoints.Run(tmp_path / "run", "key", every=1),
      ).timesteps

    run(0, 0.3, 0.9)
    # Those of a schedule that stretches.
    with refused(r"omega of time step 2 was 0\.9 and is 0\.6"):
      run(0, 0.3, 0.6, 0.9)
    assert_equal(run(0, 0.3, 0.9, 0.2), whole)

  def test_fixed_rates_prescribed_as_they_were_give_the_same_run(
    self, whole, model
  ):
    """What controls run is Fed-ADE but for its rates."""
    rates = np.array([step.learning_rates for step in whole])
    assert np.ptp(rates) > 0
    fixed = algorithms.build(
      fix_lr, model, rate_controls.fixed_rate(HPARAMS[fed_ade])
    )

    def run(prescribed):
      return self.run(fixed, prescribed_rates=prescribed).timesteps

    for one, other in zip(run(rates), whole, strict=True):
      assert one.before == other.before and one.after == other.after
      np.testing.assert_array_equal(one.learning_rates, other.learning_rates)
      np.testing.assert_array_equal(one.estimates, other.estimates)
    shuffled = run(rates[::-1])
    assert shuffled[-1].after != whole[-1].after

  def test_reset_starts_each_step_from_the_deployed_model(
    self, whole, algorithm, build
  ):
    reset = self.run(algorithm, resets=True).timesteps
    still = self.run(build(source)).timesteps
    assert [each.before for each in reset] == [each.before for each in still]
    assert whole[0].before == still[0].before
    assert reset[0].after == whole[0].after
    assert reset[0].after != reset[0].before
    assert whole[-1].before != still[-1].before

  def test_rates_and_estimates_are_those_of_the_clients(self, algorithm, whole):
    first = whole[0]
    assert first.learning_rates.shape == (NUM_CLIENTS,)
    assert first.estimates.shape == (NUM_CLIENTS, 3)
    for step in whole:
      assert step.clients.places == ({"timestep": step.timestep},)
      for name, values in step.measured().items():
        if "accuracy" in name and "pooled" not in name:
          assert np.mean(step.clients[name]) == pytest.approx(values)
      np.testing.assert_allclose(step.estimates.sum(axis=1), 1, rtol=1e-5)
      assert np.all(step.learning_rates >= np.float32(ETA_MIN))
      assert np.all(step.learning_rates <= np.float32(ETA_MAX))
    # Clients that have not taken part yet have the rate without shift and the
    # uniform estimate.
    one_round = start(algorithm, participation=0.5)
    step = one_round.step(1)
    chosen = rounds.sample_clients(NUM_CLIENTS, 0.5, RUN_SEED, 0)
    for client in range(NUM_CLIENTS):
      is_new = step.learning_rates[client] == np.float32(ETA_MIN)
      is_uniform = np.ptp(step.estimates[client]) == 0
      assert is_new == is_uniform == (client not in chosen)


@pytest.mark.slow
class TestLocalAlgorithms:
  """Clients that share nothing adapt once a step, and all of them."""

  @pytest.mark.parametrize(
    "module, changed",
    [
      (fth, "num_timesteps"),
      pytest.param(
        *(atlas, "cumulative_risk"), marks=pytest.mark.every_algorithm
      ),
    ],
    ids=["fth", "atlas"],
  )
  def test_all_clients_have_one_round_a_step(self, build, module, changed):
    run = start(build(module), rounds_per_step=3, participation=0.25)
    for timestep in range(1, NUM_TIMESTEPS + 1):
      before = [
        np.array(getattr(state, changed)) for state in run.rounds.client_states
      ]
      step = run.step(timestep)
      assert run.rounds.round_num == timestep
      for old, state in zip(before, run.rounds.client_states, strict=True):
        assert np.all(getattr(state, changed) != old)
      assert step.learning_rates.shape == (NUM_CLIENTS,)
      assert np.all(np.isnan(step.learning_rates))
      assert step.estimates is None


class TestSource:
  @pytest.fixture(scope="class")
  def result(self, build):
    return online_adaptation.run(
      build(source),
      make_streams(),
      DEPLOYMENT,
      run_seed=RUN_SEED,
      rounds_per_step=3,
    )

  def test_model_without_adaptation_is_the_pretrained_one(
    self, result, model, weights, compile_in_graph
  ):
    client_streams = make_streams()
    x = tf.TensorSpec([NUM_CLIENTS * BATCH, 5], tf.float32)
    predict = compile_in_graph(model.predict, weights, x)
    for step in result.timesteps:
      # Batches have one size, so that a mean of means is the mean.
      x, y = (
        np.concatenate(parts)
        for parts in zip(
          *(
            client_streams.batch(client, step.timestep)
            for client in range(NUM_CLIENTS)
          ),
          strict=True,
        )
      )
      logits = np.float64(predict(weights, x))
      assert step.after["accuracy"] == pytest.approx(
        100 * np.mean(logits.argmax(axis=1) == y)
      )
      losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
      assert step.after["loss"] == pytest.approx(losses.mean(), rel=1e-5)

  def test_there_are_no_rounds(self, build, result):
    run = start(build(source), rounds_per_step=3)
    before = state_bits(run)
    run.step(1)
    assert run.rounds.round_num == 0 and state_bits(run) == before
    assert result.seconds_per_round == 0
    for step in result.timesteps:
      assert step.after == step.before
      assert np.all(np.isnan(step.learning_rates))
      assert len(step.learning_rates) == NUM_CLIENTS
      assert step.estimates is None
