"""Aggregators of the clients' updates, and the algorithms' requirements.

  * `mean`: the weighted mean.
  * `robust`: the weighted mean of updates that are zeroed if their largest
    absolute value is far above the others', and clipped to a norm.
  * `dp`: the unweighted mean of clipped updates, with Gaussian noise (Learning
    Differentially Private Recurrent Language Models, McMahan, Ramage, Talwar,
    Zhang; ICLR 2018). The adaptive norm follows Differentially Private Learning
    with Adaptive Clipping (Andrew, Thakkar, McMahan, Ramaswamy; NeurIPS 2021).
  * `dp_ftrl`: as dp with a fixed norm, and noise that is correlated between
    rounds (see `tree_noise`).
  * `secure`: as robust; the server sees only sums (Practical Secure Aggregation
    for Privacy-Preserving Machine Learning, Bonawitz et al.; CCS 2017).
  * `compressed`: as robust; tensors of more than 20,000 numbers are sent with 8
    bits per number (Distributed Mean Estimation with Limited Communication,
    Suresh, Yu, Kumar, McMahan; ICML 2017).

All are built from the factories of `tff.learning` and `tff.aggregators`. Each
can be combined with server momentum (FedAvgM; Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification, Hsu, Qi,
Brown; 2019): the server adds v <- momentum * v + mean of the updates to its
weights.

Aggregators hide the update and, in `secure`, the client's weight. Losses,
counts and the sums of evaluations are measurements of the experiment: they are
plaintext sums under every aggregator, and epsilon does not cover them.

The noise of `dp` and the rounding of `compressed` come from TensorFlow's
generator without a seed: TFF takes none. The noise of `dp_ftrl` is a function
of the run's seed. Anyone who knows it can subtract the noise: with data that
are not public, it must be secret.

Choices:
  * `dp` has no zeroing (TFF determines the threshold without noise), and its
    noise has no seed (anyone who can compute the noise can subtract it): the
    one exception to equal results for equal flags.
  * `secure` has TFF's secure sums in its type. No executor in TFF 0.87 has the
    protocol: the executors here add the same integers in plaintext, with the
    code of TFF's test backend (`execution.compilation.simulate_secure_sums`),
    bit for bit the result of a secure sum.
  * Privacy accounting counts one aggregation per round, so `dp` is refused for
    algorithms with surveys.
  * Refusals are declared in the algorithms' files (`AGGREGATION_REQUIREMENTS`).
    FedDRM's guide needs n_i / N, which clipping changes; Fed-3DA sends r in
    plaintext; GMA's signs are summed in plaintext; FedPAC's and ConFREE's
    servers distinguish clients; FedAS weights clients by values of any
    magnitude; FedEvolve's server accuracy is left out if the sums of phi would
    not be hidden.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import arguments
from tff_shift._util import library_logs
from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import aggregator_hparams
from tff_shift.learning.aggregators import tree_noise
from tff_shift.learning.aggregators import update_noise


class Traits(NamedTuple):
  """Properties of an aggregator.

  Attributes:
    name: Its name in messages.
    is_mean: Whether it is the plain mean.
    is_weighted: Whether it uses clients' weights.
    bounds_updates: Whether it clips or zeroes updates.
    hides_clients: Whether it hides individual updates from the server.
    compresses: Whether it compresses updates.
    noise: The noise that it adds to the mean. None: no noise, or unknown.
    num_expected: The number of clients that counts as taking part in every
      round, so that nothing depends on how many do. None: the actual one.
  """

  name: str
  is_mean: bool
  is_weighted: bool
  bounds_updates: bool
  hides_clients: bool
  compresses: bool
  noise: update_noise.Noise | None = None
  num_expected: int | None = None


class Aggregator(tff.aggregators.WeightedAggregationFactory):
  """An aggregation factory with its traits.

  Attributes:
    traits: Its traits.
    guarantee: The privacy guarantee of a run with it, by setting. Empty: there
      is none, or it is not known.
  """

  def __init__(
    self,
    traits: Traits,
    factory: (
      tff.aggregators.WeightedAggregationFactory
      | tff.aggregators.UnweightedAggregationFactory
    ),
    is_secure: bool = False,
  ):
    """Wraps a factory.

    Args:
      traits: The properties of the factory.
      factory: The factory. Unweighted factories ignore weights.
      is_secure: Whether everything that leaves a client is a secure sum.
    """
    self.traits = traits
    self.guarantee: dict[str, Any] = {}
    self._tree = (
      factory if isinstance(factory, tree_noise.TreeFactory) else None
    )
    if isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
      factory = tff.aggregators.as_weighted_aggregator(factory)
    self._factory = factory
    self._count = _count_factory(is_secure)

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates the process.

    Args:
      value_type: The type of an update.
      weight_type: The type of a client's weight.

    Returns:
      The process. If all weights of a round are 0, its result is zeros, and a
      state with tensors stays bit-identical. With `num_expected`, such a round
      is like any other: whether it has noise must not tell who takes part.
    """
    with _quiet():
      process = self._factory.create(value_type, weight_type)
      if self.traits.num_expected is not None:
        return process
      return _unchanged_without_participants(process, self._count)

  def initialize(
    self,
    process: tff.templates.AggregationProcess,
    value_type: tff.Type,
    seed: tff.Value,
    number: int,
  ) -> tff.Value:
    """Initializes a process of `create`, in a federated computation.

    Args:
      process: The process.
      value_type: The type of an update.
      seed: The server's seed, int32 [2] at the server; of noise that has one.
      number: Distinguishes the processes of an algorithm.

    Returns:
      The state.
    """
    state = process.initialize()
    if self._tree is None:
      return state
    return tff.federated_map(
      self._tree.seeded(value_type, process, number), (state, seed)
    )


def _quiet() -> contextlib.AbstractContextManager:
  """Suppresses TensorFlow's log about unused assertions of TFF.

  TFF's secure sums assert that the clients' values are in range and drop the
  operation; TensorFlow logs a dozen lines about each to standard error.
  """
  return library_logs.without("tensorflow", "Object was never used")


def wrap(
  factory: (
    tff.aggregators.WeightedAggregationFactory
    | tff.aggregators.UnweightedAggregationFactory
    | None
  ),
) -> Aggregator:
  """Returns an `Aggregator` for any factory; None is the mean.

  Raises:
    ValueError: If it is no factory.
  """
  if isinstance(factory, Aggregator):
    return factory
  if factory is not None and not isinstance(
    factory,
    tff.aggregators.WeightedAggregationFactory
    | tff.aggregators.UnweightedAggregationFactory,
  ):
    raise ValueError(
      f"aggregator={factory!r} must be an aggregation factory, such as the"
      " result of ts.build_aggregator(name) or a factory of tff.aggregators"
    )
  return Aggregator(
    traits_of(factory), factory or tff.aggregators.MeanFactory()
  )


def either(condition, one: Any, other: Any) -> Any:
  """Returns one of two nested structures of tensors.

  Args:
    condition: A bool scalar.
    one: The result if the condition is true, or a function that returns it and
      is called only then.
    other: The result if the condition is false, or a function that returns it;
      of the same structure.

  Returns:
    The chosen structure.
  """
  forms = []

  def flat(given):
    structure = given() if callable(given) else given
    forms.append(structure)
    return list(map(tf.convert_to_tensor, tf.nest.flatten(structure)))

  # `tf.cond` copies neither; `tf.where` would.
  chosen = tf.cond(condition, lambda: flat(one), lambda: flat(other))
  return tf.nest.pack_sequence_as(forms[0], tf.nest.flatten(chosen))


def _count_factory(
  is_secure: bool,
) -> tff.aggregators.UnweightedAggregationFactory:
  """Returns a factory that counts clients, each 0 or 1."""
  if is_secure:
    return tff.aggregators.SecureSumFactory(1, 0)
  return tff.aggregators.SumFactory()


def traits_of(
  factory: (
    tff.aggregators.WeightedAggregationFactory
    | tff.aggregators.UnweightedAggregationFactory
    | None
  ),
) -> Traits:
  """Returns the traits of a factory.

  Args:
    factory: A factory; None is the mean. For a factory that `build` did not
      make, only `is_mean` and `is_weighted` are known.
  """
  if isinstance(factory, Aggregator):
    return factory.traits
  return Traits(
    name=type(factory).__name__ if factory else "mean",
    is_mean=factory is None or isinstance(factory, tff.aggregators.MeanFactory),
    is_weighted=not isinstance(
      factory, tff.aggregators.UnweightedAggregationFactory
    ),
    bounds_updates=False,
    hides_clients=False,
    compresses=False,
  )


@dataclasses.dataclass(frozen=True)
class AggregationRequirements:
  """An algorithm's requirements on an aggregator.

  Each field is the reason for a requirement; empty: no requirement.

  Attributes:
    no_aggregation: Why nothing is aggregated.
    no_clipping: Why updates must be neither clipped nor zeroed.
    plaintext_sums: Which sums beside the update the server sees in plaintext.
      Hiding the updates would protect nothing.
    per_client_values: Why the server must see each client's values (see
      `client_slots`). Hiding or compressing them would break the algorithm.
    own_weights: Why clients set their own weights, so that uniform weights are
      wrong.
    no_server_optimizer: Why the server adds something other than the mean
      update.
    surveys: What clients report before they train (see `Survey`). Privacy
      accounting counts one aggregation a round.
  """

  no_aggregation: str = ""
  no_clipping: str = ""
  plaintext_sums: str = ""
  per_client_values: str = ""
  own_weights: str = ""
  no_server_optimizer: str = ""
  surveys: str = ""

  @property
  def contributes(self) -> bool:
    """Whether clients may send more than their updates."""
    return bool(self.plaintext_sums or self.per_client_values)


NO_REQUIREMENTS = AggregationRequirements()


def refusal(requirements: AggregationRequirements, traits: Traits) -> str:
  """Returns which requirement an aggregator does not meet; empty: none."""
  if traits.is_mean:
    return ""
  return (
    requirements.no_aggregation
    or (traits.bounds_updates and requirements.no_clipping)
    or (
      traits.hides_clients
      and (requirements.plaintext_sums or requirements.per_client_values)
    )
    or (traits.compresses and requirements.per_client_values)
    or (not traits.is_weighted and requirements.own_weights)
    or (traits.noise is not None and requirements.surveys)
    or ""
  )


def check(
  algorithm: str,
  requirements: AggregationRequirements,
  traits: Traits,
  hparams: hyperparameters.HParams,
) -> None:
  """Refuses an aggregator that does not meet an algorithm's requirements.

  Args:
    algorithm: The algorithm's name, for the message.
    requirements: Its requirements.
    traits: The traits of the aggregator.
    hparams: The algorithm's hyper-parameters; `client_weighting` is used.

  Raises:
    ValueError: If a requirement is not met; one line with the reason.
  """
  if traits.is_mean:
    return
  reason = refusal(requirements, traits)
  if reason:
    raise ValueError(
      f"aggregator={traits.name} is not allowed for {algorithm}: {reason}"
    )
  weighting = hyperparameters.client_weighting(hparams)
  if not traits.is_weighted and weighting != "uniform":
    raise ValueError(
      f"client_weighting={weighting} of {algorithm} is not allowed with"
      f" aggregator={traits.name}, which ignores weights: it must be uniform"
    )


def check_server_optimizer(
  algorithm: str,
  requirements: AggregationRequirements,
  server_optimizer: object | None,
) -> None:
  """Refuses a server optimizer where the server does not add the mean update.

  Args:
    algorithm: The algorithm's name, for the message.
    requirements: Its requirements.
    server_optimizer: The optimizer or its name. None: nothing is refused.

  Raises:
    ValueError: If it is not allowed; one line with the reason.
  """
  reason = requirements.no_aggregation or requirements.no_server_optimizer
  if server_optimizer is not None and reason:
    called = f"={server_optimizer}" if isinstance(server_optimizer, str) else ""
    raise ValueError(
      f"server_optimizer{called} is not allowed for {algorithm}: {reason}"
    )


def build(
  name: str,
  hparams: aggregator_hparams.AggregatorHParams | None = None,
  *,
  clients_per_round: int | None = None,
) -> Aggregator:
  """Builds an aggregator.

  Args:
    name: One of `aggregator_hparams.NAMES`.
    hparams: The hyper-parameters; None: the defaults.
    clients_per_round: The number of clients in a round, required by `dp` and
      `dp_ftrl`. Their mean divides by this number, regardless of how many
      clients take part.

  Returns:
    The aggregator.

  Raises:
    ValueError: If the name or a hyper-parameter is not allowed; one line that
      names it.

  Examples:
    >>> aggregator = ts.build_aggregator("secure")
    >>> aggregator.traits.hides_clients, aggregator.traits.bounds_updates
    (True, True)
  """
  arguments.choice("aggregator", name, aggregator_hparams.NAMES)
  hparams = hparams or aggregator_hparams.AggregatorHParams()
  hyperparameters.validate(hparams)
  clips = hparams.clipping != "none"
  is_private = name in aggregator_hparams.PRIVATE
  traits = Traits(
    name=name,
    is_mean=name == "mean",
    is_weighted=not is_private,
    # The numbers of a secure sum are clipped to a range.
    bounds_updates=name in aggregator_hparams.HIDING
    or (name in aggregator_hparams.BOUNDED and (clips or hparams.zeroing)),
    hides_clients=name in aggregator_hparams.HIDING,
    compresses=name == "compressed",
    noise=_noise(name, hparams, clients_per_round) if is_private else None,
    num_expected=clients_per_round if name == "dp" else None,
  )
  if name == "mean":
    return Aggregator(traits, tff.aggregators.MeanFactory())
  if name == "dp":
    factory = _private(hparams, clients_per_round)
    return Aggregator(traits, factory)
  if name == "dp_ftrl":
    factory = tree_noise.TreeFactory(
      traits.noise, hparams.clipping_norm, hparams.tree_restart
    )
    return Aggregator(traits, factory)
  stock = {
    "robust": tff.learning.robust_aggregator,
    "secure": tff.learning.secure_aggregator,
    "compressed": tff.learning.compression_aggregator,
  }[name]
  is_secure = name == "secure"
  with _quiet():
    factory = _bounded(stock, hparams, is_secure)
  return Aggregator(traits, factory, is_secure)


def _unchanged_without_participants(
  process: tff.templates.AggregationProcess,
  count: tff.aggregators.UnweightedAggregationFactory,
) -> tff.templates.AggregationProcess:
  """Keeps the state in a round in which every client has weight 0.

  Otherwise adaptive norms would shrink towards updates that do not exist.
  """
  state_type, value_type, weight_type = process.next.type_signature.parameter
  if not tff.structure.flatten(state_type.member):
    return process
  result_type = process.next.type_signature.result.result.member

  @tff.tensorflow.computation(weight_type.member)
  def counts(weight):
    return tf.cast(weight > 0, tf.int32)

  counting = count.create(counts.type_signature.result)

  @tff.tensorflow.computation(
    np.int32, state_type.member, result_type, state_type.member
  )
  def keep(num_counted, new_state, result, state):
    nothing = tf.nest.map_structure(tf.zeros_like, result)
    return either(num_counted > 0, (new_state, result), (state, nothing))

  @tff.federated_computation(state_type, value_type, weight_type)
  def next_fn(state, value, weight):
    output = process.next(state, value, weight)
    # Counting has no state.
    num_counted = counting.next(
      counting.initialize(), tff.federated_map(counts, weight)
    ).result
    kept = tff.federated_map(
      keep, (num_counted, output.state, output.result, state)
    )
    return tff.templates.MeasuredProcessOutput(
      kept[0], kept[1], output.measurements
    )

  return tff.templates.AggregationProcess(process.initialize, next_fn)


def _bounded(
  stock: Callable[..., tff.aggregators.WeightedAggregationFactory],
  hparams: aggregator_hparams.AggregatorHParams,
  is_secure: bool,
) -> tff.aggregators.WeightedAggregationFactory:
  """Builds one of TFF's factories with the configured zeroing and clipping."""
  if hparams.clipping != "fixed":
    return stock(
      zeroing=hparams.zeroing, clipping=hparams.clipping == "adaptive"
    )
  count = _count_factory(is_secure)
  factory = tff.aggregators.clipping_factory(
    float(hparams.clipping_norm),
    stock(zeroing=False, clipping=False),
    clipped_count_sum_factory=count,
  )
  if not hparams.zeroing:
    return factory
  # TFF's own factories cannot clip to a fixed norm between zeroing and their
  # mean; this is their zeroing threshold.
  threshold = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
    initial_estimate=10.0,
    target_quantile=0.98,
    learning_rate=math.log(10.0),
    multiplier=2.0,
    increment=1.0,
    secure_estimation=is_secure,
  )
  return tff.aggregators.zeroing_factory(
    threshold, factory, zeroed_count_sum_factory=count
  )


def _noise(
  name: str,
  hparams: aggregator_hparams.AggregatorHParams,
  clients_per_round: int | None,
) -> update_noise.Noise:
  """Returns the noise; refuses hyper-parameters that do not fit."""
  if clients_per_round is None or clients_per_round < 1:
    raise ValueError(
      f"clients_per_round={clients_per_round} is not allowed with"
      f" aggregator={name}: it must be an integer at least 1"
    )
  is_fixed = name == "dp_ftrl" or hparams.clipping == "fixed"
  if not is_fixed and hparams.clipping == "none":
    raise ValueError(
      "clipping=none is not allowed with aggregator=dp: it must be adaptive"
      " or fixed, because noise hides only bounded updates"
    )
  multiplier = float(hparams.noise_multiplier)
  if is_fixed and not arguments.is_float32(multiplier * hparams.clipping_norm):
    raise ValueError(
      f"clipping_norm={hparams.clipping_norm:g} is not allowed with"
      f" noise_multiplier={multiplier:g}: their product, the standard deviation"
      f" of the noise, must be {arguments.FLOAT32}"
    )
  if is_fixed or not multiplier:
    return update_noise.Noise(multiplier, clients_per_round)
  # The number of updates below the norm gets noise too, of standard deviation
  # clients / 20, which uses a part of the privacy budget.
  most = 0.1 * clients_per_round
  if multiplier >= most:
    raise ValueError(
      f"noise_multiplier={multiplier:g} is not allowed with clipping=adaptive"
      f" and {clients_per_round} clients per round: it must be below {most:g},"
      " or use clipping=fixed"
    )
  # The updates get the rest (Theorem 1 of Andrew et al.).
  return update_noise.Noise(
    (multiplier**-2 - most**-2) ** -0.5, clients_per_round
  )


def _private(
  hparams: aggregator_hparams.AggregatorHParams, clients_per_round: int
) -> tff.aggregators.UnweightedAggregationFactory:
  """Builds `dp`.

  It does not zero updates: TFF finds the zeroing threshold without noise, from
  all updates, and epsilon would not cover that.
  """
  noise, clients = float(hparams.noise_multiplier), float(clients_per_round)
  if hparams.clipping == "fixed":
    return tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
      noise, clients, float(hparams.clipping_norm)
    )
  return tff.learning.dp_aggregator(noise, clients, zeroing=False)
