"""Running statistics of batch normalisation, kept beside the weights.

Batch Normalization (Ioffe, Szegedy; ICML 2015) normalises by the batch in
training, and by running means and variances in evaluation. The running
statistics are not weights: no optimizer, decay, proximal term, clip or noise
may change them, and the mean of variances is not a variance. The template
therefore keeps them beside the weights. Algorithms are unaware of them: their
functions are wrapped to run in a scope with the statistics
(`modes.with_statistics`), in which local training updates them.

A client starts from the server's statistics and ends with its own running
statistics and weight n. With d = mean - (the server's mean), which both know,
the server sums n, n * d and n * (variance + d^2) over clients and pools them,

    mean = (the server's mean) + sum(n d) / sum(n)
    variance = sum(n (variance + d^2)) / sum(n) - (sum(n d) / sum(n))^2,

which is the variance over all examples, including the variance between clients.
The sums are float64, because d is far from 0 in a first round.
`personal_norm` chooses what is personal:

  * `none`: nothing, as in FedAvg.
  * `statistics`: each client keeps its own means and variances, and the server
    has none; scale and shift are averaged with the other weights (SiloBN:
    Siloed Federated Learning for Multi-Centric Histopathology Datasets,
    Andreux, Ogier du Terrail, Beguier, Tramel; 2020).
  * `all`: scale and shift are personal too (FedBN: Federated Learning on
    Non-IID Features via Local Batch Normalization, Li, Jiang, Zhang, Kamp, Dou;
    ICLR 2021).

With `statistics` and `all`, no statistics leave a client, and the server has no
model that can predict.

An algorithm declares in `RUNNING_STATISTICS`, a `Kept`, which of its models
have statistics. Personal models keep their own statistics for every
`personal_norm`. Algorithms that adapt a pre-trained model do not change its
statistics (`FIXED`).

Choices:
  * Batch normalisation evaluates if it is frozen, as in Keras. A pass with the
    received weights, as in HBN, would be unaffected by the change of weights,
    but needs a second pass over all data.
  * Adaptation has `running_statistics=moving` only as in Fed-ADE's program: a
    client's own statistics are then in its state (`two_phase_adaptation`).
  * A sharpness-aware step updates statistics only at its first point.
    Evaluation is example by example; `modes.by_batch` normalises a whole batch
    by itself, for methods that state it.
"""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift.learning import function_types
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning.aggregators import factories
from tff_shift.models import modes
from tff_shift.models import split_model

# The reason for refusing clipping and hidden updates.
_REASON = (
  "the running statistics of batch normalisation are means of clients'"
  " activations, and the server would see them unprotected; take another"
  " normalisation, or personal_norm=statistics"
)


class Kept(NamedTuple):
  """Which of an algorithm's models have running statistics.

  Calls outside of `modes.of_model` use the first model.

  Attributes:
    server: The names of models whose weights the server averages.
    client: The names of personal models.
  """

  server: tuple[str, ...] = ()
  client: tuple[str, ...] = ()


# A client trains the server model and predicts with it; some of its layers may
# be personal.
ONE_MODEL = Kept(server=("model",))
# A client trains a personal model, and the server has none.
OWN_MODEL = Kept(client=("model",))
# A client trains the server model and a personal one.
TWO_MODELS = Kept(server=("model",), client=("personal",))
# Training does not change the statistics of the pre-trained model.
FIXED = Kept()


class Normalized(NamedTuple):
  """Weights and their running statistics.

  Attributes:
    weights: The server weights or the client state of the algorithm's
      functions.
    statistics: The running means and variances, float32 [num_channels] each, in
      the order of `SplitModel.statistics`; for several models, a dictionary by
      model name. () if they are kept elsewhere.
    normalizers: A client's personal scales and shifts; () if it has none.
  """

  weights: Any
  statistics: Any
  normalizers: Any = ()


class Sums(NamedTuple):
  """A client's addends to the plaintext sums of a round.

  Attributes:
    own: The algorithm's own addends.
    count: The client's weight, a float32 scalar.
    moments: For each statistic of the server, count times mean, or count times
      mean of squares, both relative to the server's mean, [num_channels]
      float64.
  """

  own: Any
  count: Any
  moments: Any


def requirements(
  own: factories.AggregationRequirements,
  kept: Kept | None,
  model: split_model.SplitModel,
  hparams: hyperparameters.HParams,
) -> factories.AggregationRequirements:
  """Returns an algorithm's requirements on an aggregator for this model."""
  are_summed = model.statistics and kept and kept.server
  if not are_summed or hyperparameters.personal_norm(hparams) != "none":
    return own
  return dataclasses.replace(
    own,
    plaintext_sums=own.plaintext_sums or _REASON,
    no_clipping=own.no_clipping or _REASON,
  )


def check(
  name: str,
  kept: Kept | None,
  model: split_model.SplitModel,
  hparams: hyperparameters.HParams,
) -> None:
  """Refuses combinations that batch normalisation makes wrong or ignores.

  Args:
    name: The algorithm's name.
    kept: Its `RUNNING_STATISTICS`. None: it declares none.
    model: The model.
    hparams: The hyper-parameters.

  Raises:
    ValueError: In one line.
  """
  personal = hyperparameters.personal_norm(hparams)
  if not model.statistics:
    if personal != "none":
      raise ValueError(
        f"personal_norm={personal} is not allowed with model {model.name!r},"
        " which has no trained batch normalisation"
      )
    return
  if kept is None:
    raise ValueError(
      f"{name} is not allowed with model {model.name!r}, which has batch"
      " normalisation: its file does not declare RUNNING_STATISTICS; freeze the"
      " layers (layer.trainable = False), or use GroupNormalization, as"
      " models.with_group_normalization(model) does"
    )
  if personal != "none" and not kept.server:
    raise ValueError(
      f"personal_norm={personal} is not allowed with {name}, which"
      + (
        " has only personal models"
        if kept.client
        else " does not change running statistics"
      )
    )


def check_is_trained(
  name: str, kept: Kept | None, model: split_model.SplitModel
) -> None:
  """Refuses fixed statistics that were never trained.

  Args:
    name: The algorithm's name.
    kept: Its `RUNNING_STATISTICS`.
    model: The model.

  Raises:
    ValueError: In one line.
  """
  if kept == FIXED and model.statistics and _are_initial(model.statistics):
    raise ValueError(
      f"{name} does not change the running statistics of batch normalisation,"
      f" and those of model {model.name!r} are the initial 0 and 1, which"
      " normalise nothing: start from a trained model (--weights_file, or"
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
  hparams: hyperparameters.HParams,
  client_weight: function_types.ClientWeightFn,
) -> Any:
  """Wraps an algorithm's functions with the running statistics of a model.

  Args:
    name: The algorithm's name.
    kept: Which of its models have statistics.
    functions: An `algorithm.AlgorithmSpec`.
    model: The model.
    hparams: The hyper-parameters; `personal_norm` is used.
    client_weight: `(data) -> number`, a client's weight in the server's mean.

  Returns:
    The `algorithm.AlgorithmSpec`. If the server has statistics, its weights are
    `Normalized`; if clients have statistics, their states are `Normalized`.

  Raises:
    ValueError: If statistics that the server needs would be personal; one line.
  """
  personal_norm = hyperparameters.personal_norm(hparams)
  is_personal = personal_norm != "none"
  if is_personal and functions.guide_queries is not None:
    raise ValueError(
      f"personal_norm={personal_norm} is not allowed with {name}: its server"
      " guides queries with a model, and would not have its statistics"
    )
  layout = _Layout(kept, tuple(model.statistics), is_personal)
  if personal_norm == "all" and functions.surveys:
    raise ValueError(
      f"personal_norm=all is not allowed with {name}: clients also send values"
      " computed from scale and shift; use personal_norm=statistics"
    )
  # Whether the weights, and the client states, are `Normalized`.
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
      # A personal model starts from the server's statistics.
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
    """Returns a client's weights, state and statistics."""
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
          f"personal_norm=all is not allowed with {name}: clients also send"
          " values computed from scale and shift; use personal_norm=statistics"
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
      centre = layout.unpack(layout.server, weights.statistics)
      plaintext_sum = Sums(
        plaintext_sum, count, _moments(layout, moved, centre, count)
      )
    return result._replace(
      update=update, client_state=state, plaintext_sum=plaintext_sum
    )

  def update_server(weights, mean_update, plaintext_sum, info):
    own_sum, statistics = plaintext_sum, initial()
    if layout.server:
      own_sum = plaintext_sum.own
      centre = layout.unpack(layout.server, weights.statistics)
      statistics = _pooled(layout, plaintext_sum, centre)
    with modes.with_statistics(statistics) as moved:
      if functions.update_server is None:
        found = info.step(weights.weights, mean_update)
      else:
        found = functions.update_server(
          weights.weights, mean_update, own_sum, info
        )
    updated, *memory = found if functions.initial_memory else (found,)
    if personal_norm == "all":
      # A noised mean of zeros is not zero, and new clients start from these.
      updated = normalizers.put(updated, normalizers.take(weights.weights))
    new_weights = Normalized(updated, layout.pack(layout.server, moved))
    return (new_weights, *memory) if memory else new_weights

  def with_survey(survey):
    """Wraps a survey, which does not train: statistics stay as they are."""

    def survey_client(weights, client_state, data, round_num):
      own_weights, own_state, statistics = opened(weights, client_state)
      with modes.with_statistics(statistics):
        result = survey.survey_client(own_weights, own_state, data, round_num)
      return result._replace(
        client_state=closed(result.client_state, statistics, client_state)
      )

    def update_after_survey(weights, mean_update, plaintext_sum, info):
      found = survey.update_server(
        weights.weights, mean_update, plaintext_sum, info
      )
      updated, *memory = found if functions.initial_memory else (found,)
      updated = weights._replace(weights=updated)
      return (updated, *memory) if memory else updated

    return survey._replace(
      survey_client=declared_as(survey.survey_client, survey_client),
      update_server=(
        update_after_survey if has_server_model else survey.update_server
      ),
    )

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
    """Wraps a function of the server weights."""
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
    """Returns a wrapped function, or None if the algorithm does not have it."""
    function = getattr(functions, wrapped.__name__)
    return declared_as(function, wrapped) if function else None

  def declared_as(function, wrapped):
    if local_training.does_allow_padding(function):
      return local_training.allows_padding(wrapped)
    return wrapped

  trains = functions.train_client is not None
  return functions._replace(
    initial_weights=initial_weights,
    initial_client_state=initial_client_state,
    train_client=if_there(train_client),
    update_server=(
      update_server if trains and has_server_model else functions.update_server
    ),
    surveys=tuple(map(with_survey, functions.surveys)),
    personalize_client=if_there(personalize_client),
    prepare_client=if_there(prepare_client),
    predict_as_client=if_there(predict_as_client),
    # Without statistics, the server has no model to predict with.
    predict_as_server=(
      None if is_personal else with_server(functions.predict_as_server)
    ),
    summarize_client=with_server(functions.summarize_client),
    guide_queries=with_server(functions.guide_queries),
  )


class _Layout:
  """The owners and the names of the statistics.

  Attributes:
    all: The names of all models with statistics.
    server: The models whose statistics the server has.
    client: The models whose statistics clients keep.
  """

  def __init__(
    self, kept: Kept, statistics: tuple[str, ...], is_personal: bool
  ):
    self.all = kept.server + kept.client
    self.server = () if is_personal else kept.server
    self.client = self.all if is_personal else kept.client
    self._statistics = statistics

  def key(self, model: str, statistic: str) -> str:
    """Returns the name of a model's statistic in a scope."""
    if model == self.all[0]:
      return statistic
    return modes.name_for(model, statistic)

  def keys(self, model: str) -> tuple[str, ...]:
    return tuple(self.key(model, each) for each in self._statistics)

  def pack(self, models: tuple[str, ...], values: Mapping[str, Any]) -> Any:
    """Converts the statistics of models to the format of `Normalized`."""
    of_each = {
      model: tuple(values[key] for key in self.keys(model)) for model in models
    }
    if len(models) > 1:
      return of_each
    return next(iter(of_each.values()), ())

  def unpack(self, models: tuple[str, ...], packed: Any) -> dict[str, Any]:
    """Converts packed statistics to the format of a scope."""
    if len(models) == 1:
      packed = {models[0]: packed}
    return {
      key: value
      for model in models
      for key, value in zip(self.keys(model), packed[model], strict=True)
    }


class _Normalizers:
  """Scales and shifts of batch normalisation among the shared weights.

  Unless an algorithm declares them, the shared weights must begin with the
  weights of the model, up to the personal layers, and contain no other model.
  """

  def __init__(self, functions: Any, model: split_model.SplitModel):
    self._are_given = functions.normalizers is not None
    self._flags = tf.nest.flatten(
      functions.normalizers if self._are_given else model.normalizers
    )
    self._num_normalizers = sum(tf.nest.flatten(model.normalizers))
    self._shapes = [*model.backbone.shapes, *model.head.shapes]
    self._model = model.name

  def _chosen(self, weights) -> list[bool]:
    size = len(tf.nest.flatten(weights))
    return (self._flags + [False] * size)[:size]

  def check(self, name: str, weights: Any, personal_norm: str) -> None:
    """Refuses weights that lack normalizers or have unexpected shapes."""
    lacks_some = sum(self._chosen(weights)) < self._num_normalizers
    if lacks_some and personal_norm == "none":
      raise ValueError(
        f"personal_norm=none is not allowed with {name} and model"
        f" {self._model!r}: personal layers have batch normalisation, whose"
        " statistics would be shared; use personal_norm=statistics"
      )
    if self._are_given:
      return
    for flag, weight, shape in zip(
      self._flags, tf.nest.flatten(weights), self._shapes, strict=False
    ):
      if flag and weight.shape != tf.TensorShape(shape):
        raise ValueError(
          f"{name} is not allowed with model {self._model!r}: the shared"
          " weights do not begin with the model's weights, so its batch"
          " normalisation is not found; give AlgorithmSpec.normalizers"
        )

  def take(self, weights) -> tuple[tf.Tensor, ...]:
    """Returns the normalizers among weights, in order."""
    return tuple(
      value
      for value, is_one in zip(
        tf.nest.flatten(weights), self._chosen(weights), strict=True
      )
      if is_one
    )

  def put(self, weights, values) -> Any:
    """Returns the weights with other values for the normalizers."""
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
  layout: _Layout,
  statistics: Mapping[str, tf.Tensor],
  centre: Mapping[str, tf.Tensor],
  count,
) -> tuple[tf.Tensor, ...]:
  """Returns count times means, and count times means of squares.

  Both are relative to the means of `centre`: the difference of squares of large
  numbers has no digits left.
  """
  count = tf.cast(count, tf.float64)

  def moment(name):
    layer, _, kind = name.rpartition("/")
    of_mean = f"{layer}/moving_mean"
    mean = tf.cast(statistics[of_mean], tf.float64)
    deviation = mean - tf.cast(centre[of_mean], tf.float64)
    if kind == "moving_mean":
      return count * deviation
    variance = tf.cast(statistics[name], tf.float64)
    return count * (variance + tf.square(deviation))

  return tuple(map(moment, _names_at_server(layout)))


def _pooled(
  layout: _Layout, sums: Sums, centre: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
  """Computes means and variances, by name, from the sums over clients."""
  names = _names_at_server(layout)
  count = tf.cast(sums.count, tf.float64)
  means = {
    name: value / count for name, value in zip(names, sums.moments, strict=True)
  }

  def statistic(name):
    layer, _, kind = name.rpartition("/")
    if kind == "moving_mean":
      return tf.cast(centre[name], tf.float64) + means[name]
    # Rounding can make it negative if examples hardly differ.
    deviation = means[f"{layer}/moving_mean"]
    return tf.maximum(means[name] - tf.square(deviation), 0.0)

  return {name: tf.cast(statistic(name), tf.float32) for name in names}


def _names_at_server(layout: _Layout) -> list[str]:
  return [key for model in layout.server for key in layout.keys(model)]
