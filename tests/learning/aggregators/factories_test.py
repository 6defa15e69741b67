"""Tests of aggregators: against NumPy where they can be computed by hand."""

import functools
import logging

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from numpy.testing import assert_allclose

from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import aggregator_hparams
from tff_shift.learning.aggregators import factories
from tff_shift.learning.aggregators import privacy_accounting
from tff_shift.learning.aggregators import update_noise

pytestmark = pytest.mark.usefixtures("context")

HParams = aggregator_hparams.AggregatorHParams
WEIGHT = tff.TensorType(np.float32)
# Norms 5, 0.5 and 13.
UPDATES = np.float32([[3, 4], [0.3, -0.4], [-5, 12]])
WEIGHTS = np.float32([1, 4, 3])


def create(name, hparams=None, size=1, **options):
  """Creates a process for two vectors of a size."""
  vectors = tff.types.to_type([(np.float32, (size,))] * 2)
  return factories.build(name, hparams, **options).create(vectors, WEIGHT)


def run(process, updates, weights, state=None):
  """Returns the result, one row per vector, and the new state."""
  state = process.initialize() if state is None else state
  values = [[row[:1], row[1:]] for row in np.asarray(updates, np.float32)]
  output = process.next(state, values, list(map(np.float32, weights)))
  return np.concatenate(output.result), output


def flat_bytes(state):
  return [np.asarray(value).tobytes() for value in tf.nest.flatten(state)]


def clipped(updates, norm):
  norms = np.linalg.norm(updates, axis=1, keepdims=True)
  return updates * np.minimum(1, norm / norms)


def test_weights_of_a_mean_count():
  result, _ = run(create("mean"), UPDATES, WEIGHTS)
  assert_allclose(
    result, np.average(UPDATES, axis=0, weights=WEIGHTS), rtol=1e-6
  )


class TestRobust:
  @pytest.mark.slow
  def test_adaptive_norm_is_one_at_first_and_grows_with_the_norms(self):
    process = create("robust")
    result, output = run(process, UPDATES, WEIGHTS)
    assert_allclose(
      result,
      np.average(clipped(UPDATES, 1.0), axis=0, weights=WEIGHTS),
      rtol=1e-5,
    )
    result, _ = run(process, UPDATES, WEIGHTS, output.state)
    # One norm of three is below; the target is 0.8 and the rate 0.2.
    norm = np.exp(0.2 * (0.8 - 1 / 3))
    assert_allclose(
      result,
      np.average(clipped(UPDATES, norm), axis=0, weights=WEIGHTS),
      rtol=1e-5,
    )

  @pytest.mark.slow
  def test_fixed_norm_and_zeroing_of_what_is_far_beyond(self):
    process = create("robust", HParams(clipping="fixed", clipping_norm=2.5))
    # The first threshold is 2 * 10 + 1.
    updates = np.array([[3, 4], [0, 22], [0, -20.9]])
    result, output = run(process, updates, [1, 1, 2])
    kept = clipped(updates, 2.5) * [[1], [0], [1]]
    assert_allclose(
      result, np.average(kept, axis=0, weights=[1, 1, 2]), rtol=1e-5
    )
    assert output.measurements["zeroed_count"] == 1

  @pytest.mark.parametrize(
    "zeroing, expected", [(True, [1.5, 2]), (False, [1.5, 13])]
  )
  def test_zeroing_alone_or_nothing_at_all(self, zeroing, expected):
    process = create("robust", HParams(clipping="none", zeroing=zeroing))
    result, _ = run(process, [[3, 4], [0, 22]], [1, 1])
    assert_allclose(result, expected)


@pytest.mark.slow
class TestSecure:
  @pytest.fixture(scope="class")
  def process(self):
    return create("secure", HParams(clipping="none", zeroing=False))

  def test_it_is_the_mean_to_its_quantisation(self, process):
    result, output = run(process, UPDATES, WEIGHTS)
    # A sum of three numbers in -100 .. 100 is computed in float32.
    assert_allclose(
      result,
      np.average(UPDATES, axis=0, weights=WEIGHTS),
      rtol=0,
      atol=3 * 100 * 2.0**-23,
    )
    assert output.measurements["mean_value"]["secure_upper_threshold"] == 100

  def test_what_is_beyond_the_range_of_the_sum_is_cut_off(self, process):
    result, _ = run(process, [[300, 4], [3, 4]], [1, 1])
    assert_allclose(result, [51.5, 4], atol=1e-4)

  def test_all_that_leaves_clients_is_a_secure_sum(self, type_walk_uris):
    process = create("secure", HParams(clipping="fixed"))
    assert type_walk_uris(process.next) == {"federated_secure_sum_bitwidth"}


@pytest.fixture(scope="module")
def type_walk_uris():
  """Returns `uris(computation)`: what brings client values to the server."""

  def uris(computation):
    found = set()

    def visit(block):
      signature = getattr(block, "type_signature", None)
      if (
        isinstance(block, tff.framework.Intrinsic)
        and isinstance(signature.result, tff.FederatedType)
        and signature.result.placement is tff.SERVER
        and "CLIENTS" in str(signature.parameter)
      ):
        found.add(block.uri)
      return block, False

    tff.framework.transform_postorder(computation.to_building_block(), visit)
    return found

  return uris


def test_compressed_large_tensors_are_close_and_small_ones_the_same():
  updates = np.random.default_rng(1).normal(size=(3, 20_001))
  updates = updates.astype(np.float32)
  types = tff.types.to_type([(np.float32, (20_001,)), (np.float32, (20,))])
  process = factories.build(
    "compressed", HParams(clipping="none", zeroing=False)
  ).create(types, WEIGHT)
  output = process.next(
    process.initialize(), [[row, row[:20]] for row in updates], list(WEIGHTS)
  )
  expected = np.average(updates, axis=0, weights=WEIGHTS)
  large, small = output.result
  # Each client's numbers lie on 256 levels between its least and greatest.
  steps = np.ptp(updates, axis=1) / 255
  error = np.abs(large - expected).max()
  assert 0 < error <= np.average(steps, weights=WEIGHTS)
  assert_allclose(small, expected[:20], rtol=1e-5, atol=1e-6)


class TestPrivate:
  FIXED = HParams(noise_multiplier=0.0, clipping="fixed", clipping_norm=2.5)

  def test_without_noise_it_is_the_sum_over_the_expected_clients(self):
    process = create("dp", self.FIXED, clients_per_round=4)
    result, _ = run(process, UPDATES, WEIGHTS)
    # Weights do not count, and three clients came.
    assert_allclose(result, clipped(UPDATES, 2.5).sum(axis=0) / 4, rtol=1e-5)

  def test_noise_has_its_standard_deviation_and_differs(self):
    size, clients, noise, norm = 20_000, 8, 1.5, 0.5
    process = create(
      "dp",
      HParams(noise_multiplier=noise, clipping="fixed", clipping_norm=norm),
      size=size,
      clients_per_round=clients,
    )
    zeros = [[np.zeros(size, np.float32)] * 2] * 3
    state = process.initialize()
    drawn = np.concatenate(
      [process.next(state, zeros, [1.0] * 3).result for _ in range(2)]
    )
    assert len({row.tobytes() for row in drawn}) == 4
    expected = noise * norm / clients
    # The standard error of a standard deviation is 1 / sqrt(2 n) of it.
    assert drawn.std() == pytest.approx(expected, rel=5 / np.sqrt(2 * 80_000))
    assert abs(drawn.mean()) < 5 * expected / np.sqrt(80_000)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    "clipping", ["fixed", pytest.param("adaptive", marks=pytest.mark.slow)]
  )
  def test_ledger_of_the_process_gives_the_same_epsilon(self, clipping):
    noise = 1.2
    hparams = HParams(noise_multiplier=noise, clipping=clipping)
    process = create("dp", hparams, clients_per_round=20)
    _, output = run(process, UPDATES, WEIGHTS)
    event = tff.structure.from_container(output.state.dp_event, recursive=True)
    # The other leaves are names.
    multipliers = np.array(
      [leaf for leaf in tff.structure.flatten(event) if np.isreal(leaf)],
      np.float64,
    )
    assert len(multipliers) == (1 if clipping == "fixed" else 2)
    # Gaussians compose to one; the second is of the count of clipped updates.
    total = np.sum(multipliers**-2.0) ** -0.5
    assert total == pytest.approx(noise, rel=1e-5)
    # Two weights, clients of norm 1.
    traits = factories.build("dp", hparams, clients_per_round=20).traits
    ratio = update_noise.ratio(traits.noise, tff.to_type((np.float32, [2])))
    assert ratio == pytest.approx(multipliers[0] * np.sqrt(2) / 20, rel=1e-5)

    accountant = dp_accounting.rdp.RdpAccountant()
    composed = dp_accounting.ComposedDpEvent(
      [dp_accounting.GaussianDpEvent(each) for each in multipliers]
    )
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.2, composed), 30)
    assert privacy_accounting.account(
      noise_multiplier=noise,
      num_clients=100,
      clients_per_round=20,
      num_rounds=30,
      delta=1e-3,
      is_poisson=True,
    ).epsilon == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-4)

  def test_noise_just_below_the_limit_of_the_adaptive_norm_is_allowed(self):
    hparams = HParams(noise_multiplier=0.9)
    factories.build("dp", hparams, clients_per_round=10)


@pytest.fixture(scope="module")
def all_traits():
  """The traits of every aggregator, by name."""
  return {
    name: factories.build(name, clients_per_round=50).traits
    for name in aggregator_hparams.NAMES
  }


class TestTraits:
  @pytest.mark.parametrize(
    "name, traits",
    [
      ("mean", (True, True, False, False, False)),
      ("robust", (False, True, True, False, False)),
      ("dp", (False, False, True, True, False)),
      ("dp_ftrl", (False, False, True, True, False)),
      ("secure", (False, True, True, True, False)),
      ("compressed", (False, True, True, False, True)),
    ],
  )
  def test_of_those_that_are_built(self, name, traits, all_traits):
    found = all_traits[name]
    assert found._replace(noise=None) == factories.Traits(
      name, *traits, num_expected=50 if name == "dp" else None
    )
    assert (found.noise is not None) == name.startswith("dp")

  @pytest.mark.parametrize(
    "name, bounds", [("robust", False), ("compressed", False), ("secure", True)]
  )
  def test_what_neither_clips_nor_zeroes_bounds_only_a_secure_sum(
    self, name, bounds
  ):
    hparams = HParams(clipping="none", zeroing=False)
    found = factories.build(name, hparams).traits
    assert found.bounds_updates == bounds

  def test_of_others(self):
    traits_of = factories.traits_of
    assert traits_of(None).is_mean
    assert traits_of(tff.aggregators.MeanFactory()).is_mean
    unweighted = traits_of(tff.aggregators.UnweightedMeanFactory())
    assert not unweighted.is_mean and not unweighted.is_weighted
    assert unweighted.name == "UnweightedMeanFactory"

  def test_every_hyper_parameter_says_whose_it_is(self):
    fields = {f.name for f in HParams.__dataclass_fields__.values()}
    assert set(aggregator_hparams.USED_BY) == fields
    for owners in aggregator_hparams.USED_BY.values():
      assert set(owners) <= set(aggregator_hparams.NAMES)


class TestCheck:
  UNIFORM = hyperparameters.LocalHParams()
  WEIGHTED = hyperparameters.LocalHParams(client_weighting="num_examples")

  def refusal(self, traits, requirements, hparams):
    try:
      factories.check("toy", requirements, traits, hparams)
    except ValueError as error:
      assert "\n" not in str(error)
      return str(error)
    return None

  @pytest.mark.parametrize(
    "need, refused",
    [
      ("no_aggregation", {"robust", "dp", "dp_ftrl", "secure", "compressed"}),
      ("no_clipping", {"robust", "dp", "dp_ftrl", "secure", "compressed"}),
      ("plaintext_sums", {"dp", "dp_ftrl", "secure"}),
      ("own_weights", {"dp", "dp_ftrl"}),
    ],
  )
  def test_needs(self, all_traits, need, refused):
    requirements = factories.AggregationRequirements(**{need: "it is so"})
    for name in aggregator_hparams.NAMES:
      expected = None
      if name in refused:
        expected = f"aggregator={name} is not allowed for toy: it is so"
      assert (
        self.refusal(all_traits[name], requirements, self.UNIFORM) == expected
      )

  def test_weights_need_a_weighted_mean(self, all_traits):
    for name in aggregator_hparams.NAMES:
      refusal = functools.partial(
        self.refusal, all_traits[name], factories.NO_REQUIREMENTS
      )
      found = refusal(self.WEIGHTED)
      assert found == (
        None
        if not name.startswith("dp")
        else (
          "client_weighting=num_examples of toy is not allowed with"
          f" aggregator={name}, which ignores weights: it must be uniform"
        )
      )
      assert not refusal(self.UNIFORM)


def with_noise(norm, noise):
  return HParams(clipping="fixed", clipping_norm=norm, noise_multiplier=noise)


@pytest.mark.parametrize(
  "name, hparams, clients, message",
  [
    (
      "median",
      None,
      20,
      "aggregator must be one of mean, robust, dp, dp_ftrl, secure, compressed,"
      " got 'median'; did you mean mean?",
    ),
    ("robust", HParams(clipping_norm=0), 20, "clipping_norm=0 is not allowed"),
    # What cannot be private.
    ("dp", HParams(), None, "clients_per_round=None is not allowed with"),
    ("dp", HParams(), 0, "clients_per_round=0 is not allowed with"),
    (
      "dp_ftrl",
      HParams(),
      None,
      "clients_per_round=None is not allowed with aggregator=dp_ftrl",
    ),
    ("dp_ftrl", HParams(tree_restart=-1), 20, "tree_restart=-1 is not allowed"),
    (
      "dp_ftrl",
      HParams(clipping_norm=1e36, noise_multiplier=1e3),
      20,
      "clipping_norm=1e+36 is not allowed",
    ),
    ("dp", HParams(clipping="none"), 20, "clipping=none is not allowed with"),
    ("dp", HParams(), 10, "noise_multiplier=1 is not allowed with clipping=a"),
    *(
      (
        "dp",
        HParams(noise_multiplier=noise),
        20,
        f"noise_multiplier={noise!r} is",
      )
      for noise in (9e-4, 1.1e4, np.nan)
    ),
    *(
      (
        "dp",
        HParams(dp_delta=delta),
        20,
        f"dp_delta={delta!r} is not allowed: it must be a number at least 1e-30"
        " and at most 0.5, or 0",
      )
      for delta in (1e-31, 0.6)
    ),
    # 1e39 and 1e-38 are no float32.
    ("dp", with_noise(1e36, 1e3), 20, "clipping_norm=1e+36 is not allowed"),
    ("dp", with_noise(1e-36, 1e-2), 20, "clipping_norm=1e-36 is not allowed"),
  ],
)
def test_refusals(name, hparams, clients, message, refusal):
  told = refusal(factories.build, name, hparams, clients_per_round=clients)
  assert told.startswith(message)


def test_only_the_one_message_is_left_out(caplog, monkeypatch):
  logger = tf.get_logger()
  monkeypatch.setattr(logger, "propagate", True)
  with caplog.at_level(logging.ERROR, "tensorflow"):
    with factories._quiet():
      logger.error("Object was never used (type Operation)")
      logger.error("something else")
    logger.error("Object was never used, later")
  assert [record.getMessage() for record in caplog.records] == [
    "something else",
    "Object was never used, later",
  ]
