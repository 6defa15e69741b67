"""FedDrift: a client whose loss jumps opens a model; similar models are merged.

Federated Learning under Distributed Concept Drift (Jothimurugesan, Hsieh, Wang,
Joshi, Gibbons; AISTATS 2023, arXiv:2206.00799): FedDrift, and FedDrift-Eager
with `eager`.

A source domain is a time step t, see `continual_tasks`. The server has models
w_1, w_2, ...; at first there is one. At the beginning of a step

  1. a client computes the loss F_i^t(w_k) of each model on its new data, and

         k* = argmin over k of F_i^t(w_k).

     It has drifted if F_i^t(w_k*) > F_i^(t-1)(w_k*) + delta, where the right
     side is the smallest loss at the beginning of the step before. A client
     that has drifted opens a new model, a copy of w_k*, and others take k*.
     With `eager`, all clients that drift in a step open one model together.
  2. Models are compared, except those that were just opened. With L_jk the mean
     loss of model j on the data of model k,

         D_jk = max(L_jk - L_jj, L_kj - L_kk, 0),

     and hierarchical clustering with complete linkage merges all models that
     are within delta' of each other into their mean, weighted by numbers of
     examples. With `eager`, models are not compared.

In each round of the step a client trains each model on all of its data, new and
past, that belong to the model, and the server adds to each model the mean
update of the clients that have such data. A client predicts with the model of
its newest data. With one model, and also with a delta that no loss exceeds, it
is FedAvg on the data of all steps so far, bit for bit in the last step.

What leaves a client: the updates of the models that have its data, in a table
with zeros for the others; in the first round of a step, by its id, whether it
has drifted and the number of its best model, and the sum of the losses of each
model on its data of each model; and the mean training loss. Which data belong
to which model stays. The server broadcasts, with the models, for which client a
model was opened.

`server_state.memory` is for each model the fraction of the last cohort that has
data of it, which only the server has.

Choices:
  * The paper compares losses, the program the accuracy, of which its thresholds
    are. Here the loss, with delta = 0.5; `criterion=error` for the program's.
  * The smallest loss at the beginning of the step before, on data that no model
    had seen, as in the program. The first one is that of an untrained model: no
    drift is found in the second step.
  * A new model stays alone until the next step (W = 1 in the program).
  * Drifts come first, then merging, which sees the new data too, as in the
    program; the training follows in the same round.
  * The program pools batches of clients at the server and weights merged models
    by pairs of client and step. Here L has the sums of losses over all data of
    the cohort, in the first round of a step, and weights are numbers of
    examples.
  * If there is no room (`num_models`), the model that was chosen least recently
    is replaced, as in the program; if all are chosen in this step, the client
    stays with its best one. The data of a replaced model go to the model with
    the smallest loss at the client's next report; the program drops them.
  * A client that misses a step reports when it takes part again. Data of steps
    that it has missed go to the model with the smallest loss.
  * If clients differ from the start, there is still one model for all, which
    never splits without a drift (`start=clients`).
  * An iteration has a step per domain of which a model has data, so that the
    last step costs as much as FedAvg.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms.parts import continual_tasks
from tff_shift.algorithms.parts import model_stack
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning.aggregators import client_slots
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("evolving",)

AGGREGATION_REQUIREMENTS = dataclasses.replace(
  model_stack.AGGREGATION_REQUIREMENTS,
  plaintext_sums="the server compares models by the sums of their losses",
  per_client_values="the server opens a model for each client that reports a"
  " drift",
  surveys="clients report drifts and losses before they train",
)

# The number of steps whose models a client remembers.
_MAX_STEPS = 1000
# A loss that no client has; finite, as the state of a client must be.
_NO_LOSS = 1e30


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedDrift."""

  task_rounds: int = continual_tasks.task_rounds_hparam()
  num_models: int = hyperparameters.hparam(
    8,
    "Largest number of models at a time; 1: no drift is followed. If all are in"
    " use, the one that no client has chosen for the longest time is replaced.",
    minimum=1,
    maximum=64,
  )
  eager: bool = hyperparameters.hparam(
    False,
    "FedDrift-Eager: one new model per step for all clients that drift, and"
    " models are not merged.",
  )
  start: str = hyperparameters.hparam(
    "one",
    "Models at the start: one; or clients, a model for each client in its first"
    " step, which finds concepts that differ from the start and needs a"
    " num_models above the number of clients.",
    choices=("one", "clients"),
  )
  criterion: str = hyperparameters.hparam(
    "loss",
    "What models are chosen and compared by: loss, the mean cross-entropy (the"
    " paper); or error, the fraction of wrong predictions (the authors'"
    " program).",
    choices=("loss", "error"),
  )
  drift_threshold: float = hyperparameters.hparam(
    0.5,
    "delta: a larger increase of the criterion is a drift. The authors' program"
    " has errors of 0.04 (SEA), 0.1 (MNIST, CIRCLE) and 0.2 (SINE). Where"
    " losses stay large, as on CIFAR-10 in few rounds, 0.5 sees no drift; 0.1"
    " does.",
    minimum=0,
  )
  merge_threshold: float = hyperparameters.hparam(
    0.0,
    "delta': the largest distance of models that are merged; 0:"
    " drift_threshold.",
    minimum=0,
  )

  def check_together(self) -> None:
    """Refuses a merge threshold where nothing is merged."""
    super().check_together()
    if self.eager and self.merge_threshold:
      raise ValueError(
        f"merge_threshold={self.merge_threshold:g} is not allowed with eager,"
        " which merges no models; leave it out"
      )


class Table(NamedTuple):
  """What the server knows of the models, by their places; [num_models] each.

  In the server's weights it is one tensor, [num_models, 4] float32.

  Attributes:
    number: The number of the model, which no other one ever has; -1: none.
    into: The place of the model with which it was merged; otherwise its own.
    owner: The client for which it was opened in the last round with reports, or
      num_clients: all that drifted; otherwise -1.
    step: The last step in which a client chose it; -1: none.
  """

  number: Any
  into: Any
  owner: Any
  step: Any

  @property
  def is_used(self) -> tf.Tensor:
    """Whether a place has a model that was not merged, [num_models] bool."""
    places = tf.range(self.into.shape[0], dtype=self.into.dtype)
    return (self.number >= 0) & tf.equal(self.into, places)

  @classmethod
  def of(cls, tensor) -> "Table":
    """Returns the columns of the tensor as int32."""
    return cls(*tf.unstack(tf.cast(tensor, tf.int32), axis=1))

  def tensor(self) -> tf.Tensor:
    """Returns the tensor of the columns."""
    return tf.cast(tf.stack(self, axis=1), tf.float32)


class Weights(NamedTuple):
  """The server weights.

  Attributes:
    models: The weights of the models, with a first axis of num_models.
    table: A `Table` as a tensor.
  """

  models: Any
  table: Any


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    numbers: The number of the model of each step's data, [_MAX_STEPS] int32;
      -1: none.
    step: The last step that it has reported, an int32 scalar; -1: none.
    best: The smallest criterion of a model on the data of that step, before
      they were trained on; a float32 scalar.
    has_drifted: Whether it reported a drift in that step, a bool scalar.
  """

  numbers: Any
  step: Any
  best: Any
  has_drifted: Any


class Report(NamedTuple):
  """What a client reports at the beginning of a step; float32 scalars.

  Attributes:
    has_drifted: 1 or 0.
    best: The place of the best model.
    step: The step.
  """

  has_drifted: Any
  best: Any
  step: Any


class Losses(NamedTuple):
  """The losses of all models on data by their model.

  Attributes:
    sums: The sum of the losses of model j (second axis) on the data of model k
      (first axis), [num_models, num_models] float32.
    counts: The number of examples of model k, [num_models] float32.
  """

  sums: Any
  counts: Any


def open_models(weights: Weights, reports: Report, present, eager: bool) -> Any:
  """Opens models for the clients that have drifted.

  Args:
    weights: The server weights.
    reports: The reports of clients by id, [num_clients] float32 each.
    present: Which clients have reported, [num_clients] float32, 1 or 0.
    eager: Whether all clients that have drifted share one new model.

  Returns:
    The new server weights.
  """
  num_clients = present.shape[0]
  best = tf.cast(reports.best, tf.int32)
  step = tf.cast(tf.reduce_max(reports.step * present), tf.int32)
  drifts = (reports.has_drifted > 0) & (present > 0)
  table = Table.of(weights.table)
  num_models = table.number.shape[0]
  is_chosen = tf.reduce_any(
    tf.one_hot(best, num_models, True, False) & (present > 0)[:, tf.newaxis],
    axis=0,
  )
  table = table._replace(
    owner=tf.fill([num_models], -1),
    step=tf.where(is_chosen, step, table.step),
  )
  if eager:
    drifts &= tf.equal(tf.cumsum(tf.cast(drifts, tf.int32)), 1)

  def open_one(client, models, table):
    """Opens a model for a client, unless all are chosen in this step."""
    order = tf.where(table.is_used, table.step, -2)
    place = tf.argmin(order, output_type=tf.int32)
    here = tf.one_hot(place, num_models, True, False) & (order[place] < step)
    is_gone = tf.reduce_any(here) & tf.equal(table.into, place)
    number = tf.where(is_gone, -1, table.number)
    opened = Table(
      number=tf.where(here, tf.reduce_max(table.number) + 1, number),
      into=tf.where(here, place, table.into),
      owner=tf.where(here, num_clients if eager else client, table.owner),
      step=tf.where(here, step, table.step),
    )

    def put(w):
      is_here = tf.reshape(here, [-1] + [1] * (w.shape.rank - 1))
      return tf.where(is_here, w[best[client]], w)

    return tf.nest.map_structure(put, models), opened

  _, models, table = tf.while_loop(
    lambda client, *_: client < num_clients,
    lambda client, *kept: (
      client + 1,
      *factories.either(drifts[client], lambda: open_one(client, *kept), kept),
    ),
    (tf.constant(0), weights.models, table),
    parallel_iterations=1,
  )
  return Weights(models, table.tensor())


def distances(losses: Losses) -> tf.Tensor:
  """Computes D, [num_models, num_models] float32.

  Infinite for a model without examples, and for losses that are not finite.
  """
  # [k, j]: of model j on the data of model k.
  means = losses.sums / losses.counts[:, tf.newaxis]
  worse = tf.transpose(means) - tf.linalg.diag_part(means)[:, tf.newaxis]
  both = tf.maximum(tf.maximum(worse, tf.transpose(worse)), 0.0)
  return tf.where(
    tf.math.is_finite(worse) & tf.math.is_finite(tf.transpose(worse)),
    both,
    float("inf"),
  )


def link(distance, allowed, threshold: float) -> tf.Tensor:
  """Clusters models hierarchically, with complete linkage.

  Args:
    distance: [num_models, num_models] float32, symmetric.
    allowed: Which models are clustered, [num_models] bool.
    threshold: The largest distance within a cluster.

  Returns:
    The first model of each model's cluster, [num_models] int32.
  """
  num_models = distance.shape[0]
  places = tf.range(num_models)
  are_pairs = allowed & allowed[:, tf.newaxis]
  are_pairs &= tf.not_equal(places, places[:, tf.newaxis])
  distance = tf.where(are_pairs, distance, float("inf"))

  def join(distance, first):
    pair = tf.argmin(tf.reshape(distance, [-1]), output_type=tf.int32)
    # The first of two equal entries: one < other.
    one, other = pair // num_models, pair % num_models
    joined = tf.maximum(distance[one], distance[other])
    for axis in (0, 1):
      here = tf.expand_dims(places, 1 - axis)
      along = tf.expand_dims(joined, axis)
      distance = tf.where(tf.equal(here, one), along, distance)
      distance = tf.where(tf.equal(here, other), float("inf"), distance)
    return distance, tf.where(tf.equal(first, other), one, first)

  _, first = tf.while_loop(
    lambda distance, first: tf.reduce_min(distance) <= threshold,
    join,
    (distance, places),
    parallel_iterations=1,
  )
  return first


def merge(weights: Weights, losses: Losses, threshold: float) -> Weights:
  """Merges the models that are within a distance of each other.

  Args:
    weights: The server weights.
    losses: The losses of the models.
    threshold: delta'.

  Returns:
    The new server weights. A model that is merged with no other keeps its bits.
  """
  table = Table.of(weights.table)
  is_compared = table.is_used & (table.owner < 0)
  first = link(distances(losses), is_compared, threshold)
  num_models = first.shape[0]
  members = tf.transpose(tf.one_hot(first, num_models))
  shares = members * losses.counts
  shares = tf.math.divide_no_nan(
    shares, tf.reduce_sum(shares, axis=1, keepdims=True)
  )
  is_merged = tf.reduce_sum(members, axis=1) > 1
  newest = tf.reduce_max(tf.where(members > 0, table.step, -1), axis=1)

  def mean(w):
    return tf.where(
      tf.reshape(is_merged, [-1] + [1] * (w.shape.rank - 1)),
      tf.tensordot(shares, w, 1),
      w,
    )

  return Weights(
    tf.nest.map_structure(mean, weights.models),
    table._replace(
      into=tf.gather(first, table.into),
      step=tf.where(is_merged, newest, table.step),
    ).tensor(),
  )


def first_true(values) -> tf.Tensor:
  """Returns the first position of True on the last axis; 0 without any."""
  return tf.argmax(tf.cast(values, tf.int32), axis=-1, output_type=tf.int32)


def numbers_at(table: Table, places) -> tf.Tensor:
  """Returns the numbers of the models at places; -1 for the place -1."""
  return tf.where(
    places < 0, -1, tf.gather(table.number, tf.maximum(places, 0))
  )


def error(logits, y) -> tf.Tensor:
  """Returns 1 for wrong predictions, else 0, [num_examples] float32."""
  return tf.cast(
    tf.not_equal(tf.argmax(logits, axis=1, output_type=tf.int32), y), tf.float32
  )


def build(
  model: split_model.SplitModel, hparams: HParams, num_clients: int
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedDrift; see `algorithm.AlgorithmSpec`.

  The server has no model of its own to predict with. A `client_id` must be
  below `num_clients`.
  """
  num_models = hparams.num_models
  measure = error if hparams.criterion == "error" else None

  def losses_of(weights, data):
    """Returns the criterion of each example, [num_examples, num_models]."""
    losses = model_stack.example_losses(model, weights.models, data, measure)
    is_right = (
      ~tf.math.is_nan(losses) & (Table.of(weights.table).is_used[:, tf.newaxis])
    )
    # Finite, because the sums are products with 0 and 1.
    losses = tf.where(is_right, tf.minimum(losses, _NO_LOSS), _NO_LOSS)
    return tf.transpose(losses)

  def step_of(data, round_num):
    """Returns the step of a round; refuses more steps than states have."""
    num_steps = tf.size(data.domain_sizes)
    has_room = tf.debugging.Assert(
      num_steps <= _MAX_STEPS,
      [f"fed_drift follows at most {_MAX_STEPS} domains, got", num_steps],
    )
    with tf.control_dependencies([has_room]):
      return continual_tasks.current_domain(
        hparams.task_rounds, round_num, num_steps
      )

  def places_of(weights, state, data):
    """Returns the place of the model of each step's data; -1: none."""
    table = Table.of(weights.table)
    is_known = tf.equal(state.numbers[:, tf.newaxis], table.number)
    is_known &= table.number >= 0
    places = tf.where(
      tf.reduce_any(is_known, axis=1),
      tf.gather(table.into, first_true(is_known)),
      -1,
    )
    # The model that was opened for this client has the data of this step.
    owner = num_clients if hparams.eager else data.client_id
    is_own = tf.equal(table.owner, owner) & tf.equal(table.step, state.step)
    is_now = tf.equal(tf.range(_MAX_STEPS), state.step)
    return tf.where(
      is_now & state.has_drifted & tf.reduce_any(is_own),
      first_true(is_own),
      places,
    )

  def examples_by_place(places, data, step):
    """Returns the place of each example's model; -1: of none, or later."""
    domain = local_training.domain_of_example(data)
    return tf.where(domain <= step, tf.gather(places, domain), -1)

  def look(weights, state, data, round_num):
    """Reports a drift, once in each step."""
    step = step_of(data, round_num)
    is_due = (state.step < step) & (data.domain_sizes[step] > 0)
    num_steps = tf.size(data.domain_sizes)

    def report():
      in_step = tf.one_hot(local_training.domain_of_example(data), num_steps)
      sums = tf.matmul(in_step, losses_of(weights, data), transpose_a=True)
      sizes = tf.cast(tf.maximum(data.domain_sizes, 1), tf.float32)
      best = tf.argmin(sums, axis=1, output_type=tf.int32)
      smallest = tf.reduce_min(sums[step]) / sizes[step]
      places = places_of(weights, state, data)
      places = tf.where(
        (places[:num_steps] < 0)
        & (tf.range(num_steps) <= step)
        & (data.domain_sizes > 0),
        best,
        places[:num_steps],
      )
      numbers = numbers_at(Table.of(weights.table), places)
      room = tf.fill([_MAX_STEPS - num_steps], -1)
      return ClientState(
        tf.ensure_shape(tf.concat([numbers, room], 0), [_MAX_STEPS]),
        step,
        smallest,
        smallest > state.best + hparams.drift_threshold,
      ), best[step]

    state, best = tf.cond(
      is_due,
      report,
      lambda: (
        tf.nest.map_structure(tf.convert_to_tensor, state),
        tf.constant(0),
      ),
    )
    sent = tf.nest.map_structure(
      lambda value: tf.cast(value, tf.float32),
      Report(state.has_drifted, best, step),
    )
    return algorithm.ClientResult(
      update=tf.zeros([]),
      client_state=state,
      loss=tf.constant(0.0),
      plaintext_sum=client_slots.place(sent, data.client_id),
      has_trained=is_due,
    )

  def compare(weights, state, data, round_num):
    """Reports the losses of models, in the first round of each step."""
    step = step_of(data, round_num)
    is_first = tf.equal(round_num, 0) | (step_of(data, round_num - 1) < step)
    place = examples_by_place(places_of(weights, state, data), data, step)
    is_due = is_first & tf.reduce_any(place >= 0)
    has_model = tf.one_hot(place, num_models)
    sums = tf.cond(
      is_due,
      lambda: tf.matmul(has_model, losses_of(weights, data), transpose_a=True),
      lambda: tf.zeros([num_models, num_models]),
    )
    return algorithm.ClientResult(
      update=tf.zeros([]),
      client_state=state,
      loss=tf.constant(0.0),
      plaintext_sum=Losses(sums, tf.reduce_sum(has_model, axis=0)),
      has_trained=is_due,
    )

  def train_client(weights, state, data, round_num):
    step = step_of(data, round_num)
    places = places_of(weights, state, data)
    place = examples_by_place(places, data, step)
    num_steps = tf.size(data.domain_sizes)
    is_past = tf.range(num_steps) <= step

    def train(model_and_place):
      weights_now, here = model_and_place
      own = tf.equal(place, here)
      y = tf.boolean_mask(data.y, own)
      part = data._replace(
        x=tf.boolean_mask(data.x, own),
        y=y,
        domain_sizes=tf.where(
          is_past & tf.equal(places[:num_steps], here), data.domain_sizes, 0
        ),
        num_examples=tf.size(y),
      )
      result = fed_avg.train_client(
        model, hparams, weights_now, part, round_num
      )
      size = tf.cast(part.num_examples, tf.float32)
      share = tf.minimum(size, 1.0)
      if hparams.client_weighting == "num_examples":
        share = size / tf.cast(tf.maximum(data.num_examples, 1), tf.float32)
      return (
        tf.nest.map_structure(lambda u: share * u, result.update),
        share,
        size * result.loss,
        size,
      )

    updates, shares, losses, sizes = tf.map_fn(
      train,
      (weights.models, tf.range(num_models)),
      parallel_iterations=1,
      fn_output_signature=(
        tf.nest.map_structure(
          lambda w: tf.TensorSpec(w.shape[1:], w.dtype), weights.models
        ),
        *[tf.TensorSpec([], tf.float32)] * 3,
      ),
    )
    return algorithm.ClientResult(
      update=model_stack.StackUpdate(updates, shares),
      client_state=state._replace(
        numbers=numbers_at(Table.of(weights.table), places)
      ),
      loss=tf.reduce_sum(losses) / tf.reduce_sum(sizes),
      has_trained=tf.reduce_any(place >= 0),
    )

  def update_server(weights, mean_update, plaintext_sum, info):
    del plaintext_sum, info
    models = model_stack.add_means(weights.models, mean_update)
    return weights._replace(models=models), mean_update.members

  def prepare_client(weights, state, data, round_num):
    step = step_of(data, tf.maximum(round_num - 1, 0))
    places = places_of(weights, state, data)
    current = continual_tasks.of_domain(data, step)
    best = tf.argmin(
      tf.reduce_sum(losses_of(weights, current), axis=0), output_type=tf.int32
    )
    known = tf.where(tf.range(_MAX_STEPS) <= step, places, -1)
    last = tf.reduce_max(tf.where(known >= 0, tf.range(_MAX_STEPS), -1))
    is_new = (last < 0) | ((last < step) & (tf.size(current.y) > 0))
    return model_stack.take(
      weights.models, tf.where(is_new, best, known[tf.maximum(last, 0)])
    )

  def initial_weights(seed):
    first = model.initial_weights(seed)
    places = tf.range(num_models)
    is_first = tf.equal(places, 0)
    nothing = tf.fill([num_models], -1)
    table = Table(tf.where(is_first, 0, -1), places, nothing, nothing)
    return Weights(
      tf.nest.map_structure(lambda w: tf.stack([w] * num_models), first),
      table.tensor(),
    )

  return algorithm.AlgorithmSpec(
    initial_weights=initial_weights,
    initial_memory=lambda seed: tf.zeros([num_models]),
    initial_client_state=lambda seed, weights: ClientState(
      tf.fill([_MAX_STEPS], -1),
      tf.constant(-1),
      tf.constant(_NO_LOSS if hparams.start == "one" else -_NO_LOSS),
      tf.constant(False),
    ),
    surveys=(
      algorithm.Survey(
        look,
        lambda weights, _, slots, info: (
          open_models(weights, slots.values, slots.present, hparams.eager),
          info.memory,
        ),
      ),
      *(
        []
        if hparams.eager
        else [
          algorithm.Survey(
            compare,
            lambda weights, _, losses, info: (
              merge(
                weights,
                losses,
                hparams.merge_threshold or hparams.drift_threshold,
              ),
              info.memory,
            ),
          )
        ]
      ),
    ),
    train_client=train_client,
    update_server=update_server,
    prepare_client=prepare_client,
    predict_as_client=lambda _, weights, data, examples: evaluation.predict(
      model, weights, examples.x
    ),
    max_clients=num_clients,
  )
