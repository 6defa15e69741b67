"""Running statistics of batch normalisation, beside an algorithm's weights.

Batch Normalization (Ioffe, Szegedy; ICML 2015) normalises by the batch in
training, and by running means and variances in evaluation. These are no
weights: no optimizer, decay, proximal term, clip or noise may touch them, and
the mean of variances is no variance. So the template keeps them beside the
weights, and an algorithm's functions know nothing of it: they are made anew to
run in a scope that has the statistics (`modes.with_statistics`), where local
training moves them.

A client starts from the server's statistics and ends with its own running ones,
of weight n. The server adds up n, n * mean and n * (variance + mean^2) over
clients and pools them,

    mean = sum(n mean) / sum(n)
    variance = sum(n (variance + mean^2)) / sum(n) - mean^2,

the variance of all examples, that between clients included. What is personal is
the choice of `personal_norm`:

  * `none`: nothing, as in FedAvg.
  * `statistics`: each client keeps its own means and variances, and the server
    has none; scale and shift are averaged with the other weights (SiloBN:
    Siloed Federated Learning for Multi-Centric Histopathology Datasets,
    Andreux, Ogier du Terrail, Beguier, Tramel; 2020).
  * `all`: scale and shift are a client's own, too (FedBN: Federated Learning on
    Non-IID Features via Local Batch Normalization, Li, Jiang, Zhang, Kamp, Dou;
    ICLR 2021).

With the latter two no statistics leave a client, and the server has no model
that could predict.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import aggregation
from tff_shift.models import modes
from tff_shift.models import split_model

# Why clients' sums reach the server beside their updates.
_REASON = (
  "the running statistics of batch normalisation are means of clients'"
  " activations, and the server would see them unprotected; take another"
  " normalisation, or personal_norm=statistics"
)


class Normalized(NamedTuple):
  """Weights, and the running statistics that belong to them.

  Attributes:
    weights: What an algorithm's functions take as the server's weights, or as a
      client's state.
    statistics: The running means and variances, float32 [num_channels] each, in
      the order of `SplitModel.statistics`; () where somebody else has them.
    normalizers: Scales and shifts of a client's own; () where it has none.
  """

  weights: Any
  statistics: Any
  normalizers: Any = ()


class Sums(NamedTuple):
  """What a client adds to the sums of a round beside its update.

  Attributes:
    own: What the algorithm itself adds.
    count: The client's weight, a float32 scalar.
    moments: For each statistic its count times the mean, or times the mean of
      the squares, [num_channels] float32.
  """

  own: Any
  count: Any
  moments: Any


def _personal(hparams: Any) -> str:
  # Algorithms that train nothing have no such choice.
  return getattr(hparams, "personal_norm", "none")


def needs(
  own: aggregation.Needs, model: split_model.SplitModel, hparams: Any
) -> aggregation.Needs:
  """Returns what an algorithm asks of an aggregator, for this model."""
  if not model.statistics or _personal(hparams) != "none":
    return own
  return dataclasses.replace(
    own,
    in_the_open=own.in_the_open or _REASON,
    unbounded=own.unbounded or _REASON,
  )


def check(
  name: str, trains_one_model: bool, model: split_model.SplitModel, hparams: Any
) -> None:
  """Refuses what would not be right with batch normalisation, or ignored.

  Args:
    name: The algorithm's name.
    trains_one_model: See `process.build`.
    model: The model.
    hparams: The hyper-parameters.

  Raises:
    ValueError: In one line.
  """
  personal = _personal(hparams)
  if not model.statistics:
    if personal != "none":
      raise ValueError(
        f"personal_norm={personal} is not allowed with model {model.name!r},"
        " which has no batch normalisation that is trained"
      )
    return
  if not trains_one_model:
    raise ValueError(
      f"{name} is not allowed with model {model.name!r}, which has batch"
      " normalisation: it does not train one model in one phase and predict"
      " with that one, so running statistics would not be told apart; freeze"
      " the layers (layer.trainable = False), or take GroupNormalization, as"
      " models.with_group_normalization(model) does"
    )


def bind(
  functions: Any,
  model: split_model.SplitModel,
  hparams: Any,
  client_weight: Callable[[Any], Any],
) -> Any:
  """Gives an algorithm's functions the running statistics of a model.

  Args:
    functions: A `process.Work`.
    model: The model.
    hparams: The hyper-parameters, of which `personal_norm` counts.
    client_weight: `(data) -> number`, what a client counts in the server's
      mean.

  Returns:
    The `process.Work`; for a model with running statistics its weights are
    `Normalized`, and where they are personal, so are its clients' states.
  """
  names = tuple(model.statistics)
  if not names:
    return functions
  is_personal = hparams.personal_norm != "none"
  own_normalizers = (
    model.normalizers if hparams.personal_norm == "all" else None
  )

  def initial():
    return tuple(
      tf.constant(model.statistics[each], tf.float32) for each in names
    )

  def scope(statistics):
    return modes.with_statistics(dict(zip(names, statistics, strict=True)))

  def now(current):
    return tuple(current[each] for each in names)

  def initial_weights(seed):
    return Normalized(
      functions.initial_weights(seed), () if is_personal else initial()
    )

  def initial_client_state(seed, shared):
    own = functions.initial_client_state(seed, shared.weights)
    if not is_personal:
      return own
    normalizers = (
      _take(shared.weights, own_normalizers) if own_normalizers else ()
    )
    return Normalized(own, initial(), normalizers)

  def opened(shared, state):
    """Returns weights, state and statistics of a client."""
    if not is_personal:
      return shared.weights, state, shared.statistics
    weights = shared.weights
    if own_normalizers:
      weights = _put(weights, own_normalizers, state.normalizers)
    return weights, state.weights, state.statistics

  def train_client(weights, client_state, data, round_num):
    own_weights, own_state, statistics = opened(weights, client_state)
    with scope(statistics) as current:
      result = functions.train_client(own_weights, own_state, data, round_num)
      moved = now(current)
    update, state = result.update, result.client_state
    contribution = result.contribution
    if is_personal:
      normalizers = ()
      if own_normalizers:
        changes = _take(update, own_normalizers)
        normalizers = tuple(map(tf.add, client_state.normalizers, changes))
        update = _put(
          update, own_normalizers, tuple(map(tf.zeros_like, changes))
        )
      state = Normalized(state, moved, normalizers)
    else:
      count = tf.cast(client_weight(data), tf.float32)
      contribution = Sums(contribution, count, _moments(names, moved, count))
    return result._replace(
      update=update, client_state=state, contribution=contribution
    )

  def update_server(weights, mean_update, contribution, round_num):
    own_sum = contribution if is_personal else contribution.own
    if functions.update_server is None:
      updated = tf.nest.map_structure(tf.add, weights.weights, mean_update)
    else:
      updated = functions.update_server(
        weights.weights, mean_update, own_sum, round_num
      )
    if own_normalizers:
      # A noised mean of zeros is no zero, and new clients start from these.
      updated = _put(
        updated, own_normalizers, _take(weights.weights, own_normalizers)
      )
    if is_personal:
      return Normalized(updated, ())
    return Normalized(updated, _pooled(names, contribution))

  def with_client(name):
    """Wraps a function of weights and a client's state."""
    function = getattr(functions, name)

    @functools.wraps(function)
    def call(weights, client_state, *others):
      own_weights, own_state, statistics = opened(weights, client_state)
      with scope(statistics):
        return function(own_weights, own_state, *others)

    return call

  def with_server(name):
    """Wraps a function of the server's weights."""
    function = getattr(functions, name)
    signature = inspect.signature(function)

    # TFF reads the names of the arguments, and passes them by name.
    @functools.wraps(function)
    def call(*given, **named):
      weights, *others = signature.bind(*given, **named).args
      with scope(initial() if is_personal else weights.statistics):
        return function(weights.weights, *others)

    return call

  wrapped = {
    name: with_server(name)
    for name in ("predict_as_server", "summarize_client", "guide_queries")
    if getattr(functions, name) is not None
  }
  if is_personal:
    # The server has no statistics to predict with.
    wrapped |= {"predict_as_server": None, "guide_queries": None}
  if functions.prepare_client is None:
    wrapped["predict_as_client"] = with_client("predict_as_client")
  else:

    def prepare_client(weights, client_state, data, round_num):
      own_weights, own_state, statistics = opened(weights, client_state)
      with scope(statistics) as current:
        prepared = functions.prepare_client(
          own_weights, own_state, data, round_num
        )
        return Normalized(prepared, now(current))

    def predict_as_client(weights, prepared, data, examples):
      with scope(prepared.statistics):
        return functions.predict_as_client(
          weights.weights, prepared.weights, data, examples
        )

    wrapped["prepare_client"] = prepare_client
    wrapped["predict_as_client"] = predict_as_client
  if functions.train_client is not None:
    wrapped["train_client"] = train_client
    wrapped["update_server"] = update_server
  return functions._replace(
    initial_weights=initial_weights,
    initial_client_state=initial_client_state,
    **wrapped,
  )


def _take(weights, chosen) -> tuple[tf.Tensor, ...]:
  """Returns the weights that are chosen, in their order."""
  values, flags = tf.nest.flatten(weights), tf.nest.flatten(chosen)
  if len(values) != len(flags):
    raise ValueError(
      "personal_norm=all is not allowed: what clients share are not the weights"
      " of the whole model, as TRAINS_ONE_MODEL says"
    )
  return tuple(
    value for value, is_chosen in zip(values, flags, strict=True) if is_chosen
  )


def _put(weights, chosen, values) -> Any:
  """Returns the weights with others in place of those that are chosen."""
  left = iter(values)
  return tf.nest.map_structure(
    lambda value, is_chosen: next(left) if is_chosen else value, weights, chosen
  )


def _by_layer(names, values) -> dict[str, dict[str, tf.Tensor]]:
  """Returns mean and variance for the name of each layer."""
  found: dict[str, dict[str, tf.Tensor]] = {}
  for name, value in zip(names, values, strict=True):
    layer, _, kind = name.rpartition("/")
    found.setdefault(layer, {})[kind] = value
  return found


def _moments(names, statistics, count) -> tuple[tf.Tensor, ...]:
  """Returns count times means, and times means of squares."""
  layers = _by_layer(names, statistics)

  def moment(name, value):
    layer, _, kind = name.rpartition("/")
    if kind == "moving_mean":
      return count * value
    return count * (value + tf.square(layers[layer]["moving_mean"]))

  return tuple(map(moment, names, statistics))


def _pooled(names, sums: Sums) -> tuple[tf.Tensor, ...]:
  """Returns means and variances of the sums over clients."""
  means = [each / sums.count for each in sums.moments]
  layers = _by_layer(names, means)

  def statistic(name, value):
    layer, _, kind = name.rpartition("/")
    if kind == "moving_mean":
      return value
    # Rounding may make it negative where examples hardly differ.
    return tf.maximum(value - tf.square(layers[layer]["moving_mean"]), 0.0)

  return tuple(map(statistic, names, means))
