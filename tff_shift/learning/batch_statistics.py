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

An algorithm says in `RUNNING_STATISTICS` which of its models have statistics of
their own, a `Kept`: a client's own model keeps them whatever `personal_norm`
says. Algorithms that adapt a pre-trained model leave its statistics as they are
(`FIXED`).
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift.learning.aggregators import factories
from tff_shift.models import modes
from tff_shift.models import split_model

# Why clients' sums reach the server beside their updates.
_REASON = (
  "the running statistics of batch normalisation are means of clients'"
  " activations, and the server would see them unprotected; take another"
  " normalisation, or personal_norm=statistics"
)


class Kept(NamedTuple):
  """Which of an algorithm's models have running statistics of their own.

  What an algorithm's functions call outside of `modes.of_model` is the first.

  Attributes:
    server: The names of models whose weights the server averages.
    client: The names of models of a client's own.
  """

  server: tuple[str, ...] = ()
  client: tuple[str, ...] = ()


# A client trains one model of what it receives, and predicts with it; layers of
# it may be the client's own.
ONE_MODEL = Kept(server=("model",))
# A client trains a model of its own, and the server has none.
OWN_MODEL = Kept(client=("model",))
# A client trains a model of what it receives, and one of its own.
TWO_MODELS = Kept(server=("model",), client=("personal",))
# Training leaves the statistics of the pre-trained model as they are.
FIXED = Kept()


class Normalized(NamedTuple):
  """Weights, and the running statistics that belong to them.

  Attributes:
    weights: What an algorithm's functions take as the server's weights, or as a
      client's state.
    statistics: The running means and variances, float32 [num_channels] each, in
      the order of `SplitModel.statistics`; of several models, for the name of
      each. () where somebody else has them.
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
    moments: For each statistic of the server its count times the mean, or times
      the mean of the squares, [num_channels] float32.
  """

  own: Any
  count: Any
  moments: Any


def _personal(hparams: Any) -> str:
  # Algorithms that train nothing have no such choice.
  return getattr(hparams, "personal_norm", "none")


def requirements(
  own: factories.AggregationRequirements,
  kept: Kept | None,
  model: split_model.SplitModel,
  hparams: Any,
) -> factories.AggregationRequirements:
  """Returns what an algorithm asks of an aggregator, for this model."""
  are_summed = model.statistics and kept and kept.server
  if not are_summed or _personal(hparams) != "none":
    return own
  return dataclasses.replace(
    own,
    plaintext_sums=own.plaintext_sums or _REASON,
    no_clipping=own.no_clipping or _REASON,
  )


def check(
  name: str, kept: Kept | None, model: split_model.SplitModel, hparams: Any
) -> None:
  """Refuses what would not be right with batch normalisation, or ignored.

  Args:
    name: The algorithm's name.
    kept: What it says of running statistics. None: nothing.
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
  if kept is None:
    raise ValueError(
      f"{name} is not allowed with model {model.name!r}, which has batch"
      " normalisation: its file does not say in RUNNING_STATISTICS whose the"
      " running statistics are; freeze the layers (layer.trainable = False), or"
      " take GroupNormalization, as models.with_group_normalization(model) does"
    )
  if personal != "none" and not kept.server:
    raise ValueError(
      f"personal_norm={personal} is not allowed with {name}, which"
      + (
        " has nothing but models of clients' own"
        if kept.client
        else " leaves running statistics as they are"
      )
    )


def check_is_trained(
  name: str, kept: Kept | None, model: split_model.SplitModel
) -> None:
  """Refuses fixed statistics that nobody has trained.

  Args:
    name: The algorithm's name.
    kept: What it says of running statistics.
    model: The model.

  Raises:
    ValueError: In one line.
  """
  if kept == FIXED and model.statistics and _are_initial(model.statistics):
    raise ValueError(
      f"{name} leaves the running statistics of batch normalisation as they"
      f" are, and those of model {model.name!r} are 0 and 1, which normalise"
      " nothing: start from a model that was trained (--weights_file, or"
      " pre-training)"
    )


def _are_initial(statistics) -> bool:
  return all(
    np.all(np.equal(value, name.endswith("variance")))
    for name, value in statistics.items()
  )


def bind(
  name: str,
  kept: Kept,
  functions: Any,
  model: split_model.SplitModel,
  hparams: Any,
  client_weight: Callable[[Any], Any],
) -> Any:
  """Gives an algorithm's functions the running statistics of a model.

  Args:
    name: The algorithm's name.
    kept: Which of its models have statistics of their own.
    functions: A `algorithm.AlgorithmSpec`.
    model: The model.
    hparams: The hyper-parameters, of which `personal_norm` counts.
    client_weight: `(data) -> number`, what a client counts in the server's
      mean.

  Returns:
    The `algorithm.AlgorithmSpec`; for a model with running statistics its
    weights are `Normalized` where the server has statistics, and so are its
    clients' states where they have.

  Raises:
    ValueError: If statistics that the server needs would be clients' own, in
      one line.
  """
  personal_norm = hparams.personal_norm
  is_personal = personal_norm != "none"
  if is_personal and functions.guide_queries is not None:
    raise ValueError(
      f"personal_norm={personal_norm} is not allowed with {name}: its server"
      " guides queries by a model, whose statistics it would not have"
    )
  layout = _Layout(kept, tuple(model.statistics), is_personal)
  # The weights are `Normalized`, and so are the states.
  has_server_model, has_client_state = bool(kept.server), bool(layout.client)
  normalizers = _Normalizers(functions, model)

  def initial():
    return {
      layout.key(each, statistic): tf.constant(value, tf.float32)
      for each in layout.all
      for statistic, value in model.statistics.items()
    }

  def initial_weights(seed):
    weights = functions.initial_weights(seed)
    if not has_server_model:
      return weights
    normalizers.check(name, weights, personal_norm)
    return Normalized(weights, layout.pack(layout.server, initial()))

  def initial_client_state(seed, shared):
    weights = shared.weights if has_server_model else shared
    own = functions.initial_client_state(seed, weights)
    if not has_client_state:
      return own
    statistics = initial()
    if layout.server:
      # A client's own model starts where that of the server is.
      received = layout.unpack(layout.server, shared.statistics)
      statistics = {
        layout.key(each, statistic): received[statistic]
        for each in layout.client
        for statistic in model.statistics
      }
    return Normalized(
      own,
      layout.pack(layout.client, statistics),
      normalizers.take(weights) if personal_norm == "all" else (),
    )

  def opened(shared, state):
    """Returns weights, state and statistics of a client."""
    weights, statistics = shared, {}
    if has_server_model:
      weights = shared.weights
      statistics |= layout.unpack(layout.server, shared.statistics)
    if has_client_state:
      statistics |= layout.unpack(layout.client, state.statistics)
      if personal_norm == "all":
        weights = normalizers.put(weights, state.normalizers)
      state = state.weights
    return weights, state, statistics

  def closed(own_state, moved, client_state):
    """Returns a client's state after its work."""
    if not has_client_state:
      return own_state
    return Normalized(
      own_state, layout.pack(layout.client, moved), client_state.normalizers
    )

  def train_client(weights, client_state, data, round_num):
    own_weights, own_state, statistics = opened(weights, client_state)
    with modes.with_statistics(statistics) as moved:
      result = functions.train_client(own_weights, own_state, data, round_num)
    update, plaintext_sum = result.update, result.plaintext_sum
    state = closed(result.client_state, moved, client_state)
    if personal_norm == "all":
      if tf.nest.flatten(plaintext_sum):
        raise ValueError(
          f"personal_norm=all is not allowed with {name}: beside its update a"
          " client sends what is made of all of it, scale and shift too; take"
          " personal_norm=statistics"
        )
      changes = normalizers.take(update)
      state = state._replace(
        normalizers=tuple(
          tf.add(old, change)
          for old, change in zip(state.normalizers, changes, strict=True)
        )
      )
      update = normalizers.put(update, tuple(map(tf.zeros_like, changes)))
    if layout.server:
      has_weight = bool(tf.nest.flatten(result.weight))
      count = result.weight if has_weight else client_weight(data)
      count = tf.cast(count, tf.float32)
      plaintext_sum = Sums(plaintext_sum, count, _moments(layout, moved, count))
    return result._replace(
      update=update, client_state=state, plaintext_sum=plaintext_sum
    )

  def update_server(weights, mean_update, plaintext_sum, round_num):
    own_sum, statistics = plaintext_sum, initial()
    if layout.server:
      own_sum, statistics = plaintext_sum.own, _pooled(layout, plaintext_sum)
    with modes.with_statistics(statistics) as moved:
      if functions.update_server is None:
        updated = tf.nest.map_structure(tf.add, weights.weights, mean_update)
      else:
        updated = functions.update_server(
          weights.weights, mean_update, own_sum, round_num
        )
    if personal_norm == "all":
      # A noised mean of zeros is no zero, and new clients start from these.
      updated = normalizers.put(updated, normalizers.take(weights.weights))
    return Normalized(updated, layout.pack(layout.server, moved))

  def personalize_client(weights, client_state, data, round_num):
    own_weights, own_state, statistics = opened(weights, client_state)
    with modes.with_statistics(statistics) as moved:
      result = functions.personalize_client(
        own_weights, own_state, data, round_num
      )
    return result._replace(
      client_state=closed(result.client_state, moved, client_state)
    )

  def prepare_client(weights, client_state, data, round_num):
    own_weights, own_state, statistics = opened(weights, client_state)
    with modes.with_statistics(statistics) as moved:
      prepared = functions.prepare_client(
        own_weights, own_state, data, round_num
      )
    return Normalized(
      prepared,
      layout.pack(layout.all, moved),
      client_state.normalizers if has_client_state else (),
    )

  def predict_as_client(weights, client_state, data, examples):
    if functions.prepare_client is None:
      own_weights, own_state, statistics = opened(weights, client_state)
    else:
      own_weights = weights.weights if has_server_model else weights
      if personal_norm == "all":
        own_weights = normalizers.put(own_weights, client_state.normalizers)
      own_state = client_state.weights
      statistics = layout.unpack(layout.all, client_state.statistics)
    with modes.with_statistics(statistics):
      return functions.predict_as_client(own_weights, own_state, data, examples)

  def with_server(function):
    """Wraps a function of the server's weights."""
    if function is None or not has_server_model:
      return function
    signature = inspect.signature(function)

    # TFF reads the names of the arguments, and passes them by name.
    @functools.wraps(function)
    def call(*given, **named):
      weights, *others = signature.bind(*given, **named).args
      statistics = layout.unpack(layout.server, weights.statistics)
      with modes.with_statistics(statistics or initial()):
        return function(weights.weights, *others)

    return call

  def if_there(wrapped):
    """Wraps a function of the algorithm that it may lack."""
    return wrapped if getattr(functions, wrapped.__name__) else None

  trains = functions.train_client is not None
  return functions._replace(
    initial_weights=initial_weights,
    initial_client_state=initial_client_state,
    train_client=if_there(train_client),
    update_server=(
      update_server if trains and has_server_model else functions.update_server
    ),
    personalize_client=if_there(personalize_client),
    prepare_client=if_there(prepare_client),
    predict_as_client=predict_as_client,
    # Without statistics, the server has no model to predict with.
    predict_as_server=(
      None if is_personal else with_server(functions.predict_as_server)
    ),
    summarize_client=with_server(functions.summarize_client),
    guide_queries=with_server(functions.guide_queries),
  )


class _Layout:
  """Who has which statistics, and what they are called.

  Attributes:
    all: The names of all models that have statistics.
    server: Of those, whose statistics the server has.
    client: Whose statistics clients keep.
  """

  def __init__(
    self, kept: Kept, statistics: tuple[str, ...], is_personal: bool
  ):
    self.all = kept.server + kept.client
    self.server = () if is_personal else kept.server
    self.client = self.all if is_personal else kept.client
    self._statistics = statistics

  def key(self, model: str, statistic: str) -> str:
    """Returns what a statistic of a model is called in a scope."""
    if model == self.all[0]:
      return statistic
    return modes.name_for(model, statistic)

  def keys(self, model: str) -> tuple[str, ...]:
    return tuple(self.key(model, each) for each in self._statistics)

  def pack(self, models: tuple[str, ...], values: Mapping[str, Any]) -> Any:
    """Returns the statistics of models as `Normalized` has them."""
    of_each = {
      model: tuple(values[key] for key in self.keys(model)) for model in models
    }
    return of_each if len(models) > 1 else next(iter(of_each.values()), ())

  def unpack(self, models: tuple[str, ...], packed: Any) -> dict[str, Any]:
    """Returns the statistics as a scope has them."""
    if len(models) == 1:
      packed = {models[0]: packed}
    return {
      key: value
      for model in models
      for key, value in zip(self.keys(model), packed[model], strict=True)
    }


class _Normalizers:
  """Scales and shifts of batch normalisation among what clients share.

  Unless an algorithm says which they are, what clients share begins with the
  weights of the model, up to those that are a client's own, and has no other.
  """

  def __init__(self, functions: Any, model: split_model.SplitModel):
    self._are_given = functions.normalizers is not None
    self._flags = tf.nest.flatten(
      functions.normalizers if self._are_given else model.normalizers
    )
    self._shapes = [*model.backbone.shapes, *model.head.shapes]
    self._model = model.name

  def _chosen(self, weights) -> list[bool]:
    size = len(tf.nest.flatten(weights))
    return (self._flags + [False] * size)[:size]

  def check(self, name: str, weights: Any, personal_norm: str) -> None:
    """Refuses weights that lack some, or are not what they are taken for."""
    lacks_some = sum(self._chosen(weights)) < sum(self._flags)
    if lacks_some and personal_norm == "none":
      raise ValueError(
        f"personal_norm=none is not allowed with {name} and model"
        f" {self._model!r}: layers that are a client's own here have batch"
        " normalisation, whose statistics would not be; take"
        " personal_norm=statistics"
      )
    if self._are_given:
      return
    for flag, weight, shape in zip(
      self._flags, tf.nest.flatten(weights), self._shapes, strict=False
    ):
      if flag and weight.shape != tf.TensorShape(shape):
        raise ValueError(
          f"{name} is not allowed with model {self._model!r}: what clients"
          " share does not begin with its weights, so its batch normalisation"
          " is not found"
        )

  def take(self, weights) -> tuple[tf.Tensor, ...]:
    """Returns those of weights, in their order."""
    return tuple(
      value
      for value, is_one in zip(
        tf.nest.flatten(weights), self._chosen(weights), strict=True
      )
      if is_one
    )

  def put(self, weights, values) -> Any:
    """Returns the weights with other values for them."""
    left = iter(values)
    return tf.nest.pack_sequence_as(
      weights,
      [
        next(left) if is_one else value
        for value, is_one in zip(
          tf.nest.flatten(weights), self._chosen(weights), strict=True
        )
      ],
    )


def _moments(
  layout: _Layout, statistics: Mapping[str, tf.Tensor], count
) -> tuple[tf.Tensor, ...]:
  """Returns count times means, and times means of squares."""

  def moment(name):
    layer, _, kind = name.rpartition("/")
    if kind == "moving_mean":
      return count * statistics[name]
    mean = statistics[f"{layer}/moving_mean"]
    return count * (statistics[name] + tf.square(mean))

  return tuple(map(moment, _names_at_server(layout)))


def _pooled(layout: _Layout, sums: Sums) -> dict[str, tf.Tensor]:
  """Returns means and variances of the sums over clients, by name."""
  names = _names_at_server(layout)
  means = {
    name: value / sums.count
    for name, value in zip(names, sums.moments, strict=True)
  }

  def statistic(name):
    layer, _, kind = name.rpartition("/")
    if kind == "moving_mean":
      return means[name]
    # Rounding may make it negative where examples hardly differ.
    mean = means[f"{layer}/moving_mean"]
    return tf.maximum(means[name] - tf.square(mean), 0.0)

  return {name: statistic(name) for name in names}


def _names_at_server(layout: _Layout) -> list[str]:
  return [key for model in layout.server for key in layout.keys(model)]
