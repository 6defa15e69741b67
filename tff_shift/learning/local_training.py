"""The local training loop, and how batches are drawn from a client's data.

All functions are pure TensorFlow functions of tensors: they can be tested alone
and become part of a client's TFF computation.

Choices:
  * The optimizer's state is reset every round.
  * Weight decay is added to the gradient, as PyTorch's `weight_decay`;
    `--optimizer=adamw` decouples it.
  * `--cosine_rounds`: half a cosine over the rounds, constant within a round.
  * Batches go through random orders of the client's examples. All batches of a
    round are drawn before the first step; the data are not copied in shuffled
    order, and all batches are full: a client with fewer examples than a step
    needs continues in the next random order. FedDRM's program takes a short
    last batch.
  * A client without examples takes no step: there is no batch.
"""

import collections
import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import batch_values
from tff_shift._util import draws
from tff_shift.data import client_dataset
from tff_shift.learning import hyperparameters
from tff_shift.learning import randomness
from tff_shift.learning import weight_masks
from tff_shift.models import modes
from tff_shift.models import split_model


def data_type(
  model: split_model.SplitModel,
  num_domains: int | None = None,
  *,
  allows_padding: bool = False,
) -> tff.Type:
  """Returns the TFF type of `ClientDataset` for a model's inputs.

  Args:
    model: The model.
    num_domains: The number of domains. None: any number, as in training data.
      Evaluation data have a fixed number, since sums over clients need a fixed
      shape.
    allows_padding: Whether it is a `PaddedDataset`.
  """
  container = client_dataset.ClientDataset
  if allows_padding:
    container = client_dataset.PaddedDataset
  return tff.types.to_type(
    container(
      x=tff.TensorType(
        model.input_dtype.as_numpy_dtype, (None, *model.input_shape)
      ),
      y=tff.TensorType(np.int32, (None,)),
      domain_sizes=tff.TensorType(np.int32, (num_domains,)),
      num_examples=tff.TensorType(np.int32),
      seed=randomness.SEED_TYPE,
      client_id=tff.TensorType(np.int32),
    )
  )


def allows_padding(function: Callable[..., Any]) -> Callable[..., Any]:
  """Declares that a function of an `AlgorithmSpec` ignores padding.

  It reads of `x` and `y`, of a client's data and of evaluation data, the rows
  of examples alone: as many as `num_examples` and `domain_sizes` say, and not
  as long as `y` is; each row by itself. If all functions of a spec say so,
  clients of unequal sizes can be in one batch. The contract of algorithms
  compares results with and without padding.

  Args:
    function: The function.

  Returns:
    The function.
  """
  function.allows_padding = True  # type: ignore[attr-defined]
  return function


def does_allow_padding(function: Any) -> bool:
  """Returns what `allows_padding` has declared."""
  return getattr(function, "allows_padding", False)


class Batch(NamedTuple):
  """A batch of examples.

  Attributes:
    x: [batch_size, ...].
    y: [batch_size] int32.
    weights: The weights of the examples, [batch_size] float32; () without.
  """

  x: Any
  y: Any
  weights: Any = ()


def _draw(data: client_dataset.ClientDataset, size, num_draws, seed):
  """Draws indices of examples without replacement, epoch by epoch.

  The draws run through a random order of the examples, then through the next
  random order, and so on. All batches are therefore full, and all examples are
  drawn equally often.

  Args:
    data: The client's data, whose rows are `size` or more.
    size: The number of examples, an int32 scalar.
    num_draws: The number of draws, an int32 scalar. It does not change the
      first draws.
    seed: An int32 tensor of shape [2].

  Returns:
    [num_draws or more] int32, each from 0 to size - 1; zeros if there are no
    examples.
  """
  # Clients of a batch have as many rows, not as many examples.
  num_rows = tf.maximum(tf.size(data.y), 1)
  num_draws = batch_values.largest(num_draws)
  orders = draws.orders(num_draws + num_rows, tf.maximum(size, 1), seed)
  return orders[:num_draws]


def _take(
  data: client_dataset.ClientDataset,
  places,
  number,
  batch_size: int,
  weights: Any = (),
) -> Batch:
  """Returns batch `number` of the drawn indices."""
  start = number * batch_size
  places = tf.slice(places, [start], [batch_size])
  return Batch(
    tf.gather(data.x, places),
    tf.gather(data.y, places),
    tf.nest.map_structure(lambda each: tf.gather(each, places), weights),
  )


def pooled_batches(
  data: client_dataset.ClientDataset,
  num_batches,
  batch_size: int,
  seed,
  example_weights: Any = (),
) -> Callable[[Any], Batch]:
  """Draws batches from all examples, regardless of their domain.

  All batches are drawn at once, before the loop that uses them.

  Args:
    data: The client's data.
    num_batches: The number of batches, an int32 scalar.
    batch_size: The number of examples per batch.
    seed: An int32 tensor of shape [2]; determines the random order.
    example_weights: The weights of the examples in the loss, [num_examples]
      float32. They do not change how often an example is drawn. (): none.

  Returns:
    `(number) -> Batch`, with the number from 0, an int32 scalar. A batch does
    not depend on `num_batches`.
  """
  places = _draw(data, data.num_examples, num_batches * batch_size, seed)
  return lambda number: _take(data, places, number, batch_size, example_weights)


def domain_batches(
  data: client_dataset.ClientDataset, num_visits, batch_size: int, seed
) -> Callable[[Any, Any], Batch]:
  """Draws batches from the examples of each domain, see `pooled_batches`.

  Args:
    data: The client's data. A batch of a domain without examples is an error:
      see `without_empty_domains`.
    num_visits: The number of batches per domain, an int32 scalar.
    batch_size: The number of examples per batch.
    seed: An int32 tensor of shape [2]; determines the random orders.

  Returns:
    `(domain, visit) -> Batch`, with the index of the domain and the number of
    its batch, both from 0, int32 scalars.
  """
  starts = tf.cumsum(data.domain_sizes, exclusive=True)
  num_draws = num_visits * batch_size

  def draw(domain):
    size = data.domain_sizes[domain]
    places = _draw(data, size, num_draws, randomness.fold(seed, domain))
    # Index -1 makes the gather fail for a domain without examples.
    return tf.where(size > 0, starts[domain] + places, -1)

  places = tf.map_fn(
    draw,
    tf.range(tf.size(data.domain_sizes)),
    fn_output_signature=tf.TensorSpec([None], tf.int32),
  )  # [num_domains, num_draws]
  return lambda domain, visit: _take(data, places[domain], visit, batch_size)


def domain_of_example(data: client_dataset.ClientDataset) -> tf.Tensor:
  """Returns the domain of every example, [num_examples] int32."""
  return tf.repeat(tf.range(tf.size(data.domain_sizes)), data.domain_sizes)


def num_domains(data: client_dataset.ClientDataset) -> tf.Tensor:
  """Returns the number of domains with examples, an int32 scalar."""
  return batch_values.equal(
    tf.math.count_nonzero(data.domain_sizes, dtype=tf.int32)
  )


def held_first(domain_sizes) -> tf.Tensor:
  """Returns the domains, those with examples before the others.

  Args:
    domain_sizes: [num_domains] int32.

  Returns:
    [num_domains] int32; both groups keep their order.
  """
  return tf.argsort(tf.cast(tf.equal(domain_sizes, 0), tf.int32), stable=True)


def without_empty_domains(
  data: client_dataset.ClientDataset,
) -> client_dataset.ClientDataset:
  """Removes the domains of which a client has no examples.

  The remaining domains keep their order: the client steps from each to its next
  one. A client without any examples keeps one empty domain.
  """
  held = held_first(data.domain_sizes)[: tf.maximum(num_domains(data), 1)]
  return data._replace(domain_sizes=tf.gather(data.domain_sizes, held))


def has_examples(data: client_dataset.ClientDataset) -> tf.Tensor:
  """Returns 1, or 0 for a client without examples; equal in a batch."""
  return tf.minimum(tf.size(data.y), 1)


def epoch_steps(
  data: client_dataset.ClientDataset, batch_size: int
) -> tf.Tensor:
  """Returns the number of batches in one epoch."""
  return -(-data.num_examples // batch_size)


def num_local_steps(
  hparams: hyperparameters.LocalWorkHParams,
  data: client_dataset.ClientDataset,
  round_num,
) -> tf.Tensor:
  """Returns the number of local iterations (tau) of a client in a round.

  An iteration is one step in each domain of which the client has examples.

  Args:
    hparams: `local_steps`, `local_epochs` and `straggler_ratio` are used.
    data: The client's data.
    round_num: The round, an int32 scalar.

  Returns:
    An int32 scalar, at least 1; 0 for a client without examples.
  """
  steps = tf.constant(hparams.local_steps)
  if hparams.local_epochs:
    per_step = tf.maximum(num_domains(data), 1) * hparams.batch_size
    steps = -(-hparams.local_epochs * data.num_examples // per_step)
  if not hparams.straggler_ratio:
    return steps * has_examples(data)
  seed = randomness.fold(data.seed, randomness.Purpose.STRAGGLE, round_num)
  is_straggler = draws.uniform([], seed) < hparams.straggler_ratio
  fewer = draws.integers(
    [], randomness.fold(seed, 1), 1, tf.maximum(steps, 1) + 1
  )
  return tf.where(is_straggler, fewer, steps) * has_examples(data)


def scheduled_rate(
  hparams: hyperparameters.LocalHParams, round_num
) -> float | tf.Tensor:
  """Returns the learning rate of a round.

  Args:
    hparams: `learning_rate`, `cosine_rounds`, `decay_rounds` and `decay_factor`
      are used.
    round_num: The round from 0, an int32 scalar. None: outside of rounds, the
      rate without its schedule.

  Returns:
    `learning_rate * (1 + cos(pi * round_num / cosine_rounds)) / 2`, and 0 after
    `cosine_rounds`; `learning_rate * decay_factor ** (round_num //
    decay_rounds)`; `learning_rate` itself without a schedule.
  """
  if not hparams.has_schedule or round_num is None:
    return hparams.learning_rate
  if hparams.decay_rounds:
    number = tf.cast(round_num // hparams.decay_rounds, tf.float32)
    return hparams.learning_rate * tf.pow(hparams.decay_factor, number)
  done = tf.cast(round_num, tf.float32) / hparams.cosine_rounds
  return hparams.learning_rate * (
    (1.0 + tf.cos(np.pi * tf.minimum(done, 1.0))) / 2.0
  )


def build_optimizer(
  hparams: hyperparameters.LocalWorkHParams, learning_rate: float | tf.Tensor
) -> tff.learning.optimizers.Optimizer:
  """Builds the clients' optimizer from TFF's functional optimizers."""
  if hparams.optimizer == "sgd":
    return tff.learning.optimizers.build_sgdm(
      learning_rate, hparams.momentum or None
    )
  if hparams.optimizer == "adam":
    return tff.learning.optimizers.build_adam(learning_rate)
  return tff.learning.optimizers.build_adamw(
    learning_rate, weight_decay=hparams.weight_decay
  )


class StepCount:
  """Counts the gradients of `train`, within `count_steps`.

  Attributes:
    gradients: For each call of `train`, its gradients: a step of
      sharpness-aware minimisation has two. int32 scalars.
    is_complete: Whether all calls are counted. A call inside a loop or a branch
      is not: the number of its executions is not known.
  """

  def __init__(self):
    self._graph = tf.compat.v1.get_default_graph()
    self.gradients = []
    self.is_complete = True

  def add(self, num_steps, num_gradients: int) -> None:
    """Counts a call of `train`, and the gradients of each of its steps."""
    if tf.compat.v1.get_default_graph() is self._graph:
      self.gradients.append(num_steps * num_gradients)
    else:
      self.is_complete = False


_step_count: contextvars.ContextVar[StepCount | None] = contextvars.ContextVar(
  "step_count", default=None
)


@contextlib.contextmanager
def count_steps() -> Iterator[StepCount]:
  """Makes `train` count its gradients in this graph, and not train."""
  count = StepCount()
  token = _step_count.set(count)
  try:
    yield count
  finally:
    _step_count.reset(token)


def _num_gradients(differentiate, point, carry) -> int:
  """Returns how often a step computes the gradient, without computing it."""
  points = []

  def gradient_at(at, *_):
    points.append(at)
    zeros = tf.nest.map_structure(tf.zeros_like, at)
    return Gradient(tf.constant(0.0), carry, zeros)

  differentiate(gradient_at, point)
  return len(points)


class TrainingResult(NamedTuple):
  """The result of local training.

  Attributes:
    weights: The trained weights, in the structure of the initial ones.
    carry: The last carry that `loss_fn` returned.
    loss: The mean of the losses, a float32 scalar.
    moments: The optimizer's state, without its hyper-parameters, see
      `initial_moments`.
  """

  weights: Any
  carry: Any
  loss: Any
  moments: Any = ()


class Gradient(NamedTuple):
  """The gradient of a step's loss at some weights.

  Attributes:
    loss: The loss, a float32 scalar.
    carry: The carry of `loss_fn` for the next step.
    gradients: A tuple with a tensor for each trained weight.
    takes_step: A bool scalar; if False, weights and optimizer stay as they are.
      (): a step is taken.
  """

  loss: Any
  carry: Any
  gradients: Any
  takes_step: Any = ()


def _optimizers(
  hparams: hyperparameters.LocalWorkHParams, learning_rate, decaying
) -> list[tuple[tuple[bool, ...], tff.learning.optimizers.Optimizer]]:
  """Returns optimizers, each with the weights that it trains."""
  # adamw decays weights itself, so weights without decay get their own adamw.
  groups = [(decaying, build_optimizer(hparams, learning_rate))]
  if not all(decaying):
    undecayed = dataclasses.replace(hparams, weight_decay=0.0)
    groups.append(
      (
        tuple(not each for each in decaying),
        build_optimizer(undecayed, learning_rate),
      )
    )
  return groups


def _initial_states(groups, weights: tuple[Any, ...]) -> tuple[Any, ...]:
  """Returns the first state of each optimizer."""
  return tf.nest.map_structure(
    tf.convert_to_tensor,
    tuple(
      optimizer.initialize(
        tuple(
          tf.TensorSpec(w.shape, w.dtype)
          for w in weight_masks.take(weights, group)
        )
      )
      for group, optimizer in groups
    ),
  )


def _moments(groups, states) -> tuple[Any, ...]:
  """Returns the states of optimizers without their hyper-parameters."""
  return tuple(
    collections.OrderedDict(
      (name, value)
      for name, value in state.items()
      if name not in optimizer.get_hparams(state)
    )
    for (_, optimizer), state in zip(groups, states, strict=True)
  )


def initial_moments(
  weights: Any, hparams: hyperparameters.LocalWorkHParams
) -> Any:
  """Returns the first moments of an optimizer, for `train`.

  Args:
    weights: The weights, all of which are trained and decay.
    hparams: The optimizer and its hyper-parameters.

  Returns:
    A nested structure of tensors: the moving averages of gradients and the
    number of steps of adam, the sum of gradients of sgd with momentum.
  """
  flat = tuple(tf.nest.flatten(weights))
  groups = _optimizers(hparams, 0.0, (True,) * len(flat))
  return _moments(groups, _initial_states(groups, flat))


def train(
  loss_fn: Callable[..., tuple[tf.Tensor, Any]],
  weights: Any,
  num_steps,
  hparams: hyperparameters.LocalWorkHParams,
  *,
  seed: Any,
  carry: Any = (),
  trainable: Any = None,
  decays: Any = None,
  learning_rate: tf.Tensor | Callable[[Any], tf.Tensor] | None = None,
  round_num: Any = None,
  differentiate: Callable[
    [Callable[..., Gradient], Any], Gradient
  ] = lambda gradient_at, trained: gradient_at(trained),
  project: Callable[[Any], Any] | None = None,
  moments: Any = None,
) -> TrainingResult:
  """Takes gradient steps: the only local training loop of the package.

  Args:
    loss_fn: `(weights, step, carry) -> (loss, carry)`; step is an int32 scalar
      that counts from 0, loss a float32 scalar. No gradient flows from step to
      step through `carry`. Models are called in training mode (`modes`): the
      regularizers of their layers are added to the loss, and running statistics
      of the scope are updated.
    weights: The initial weights, a nested structure of float32 tensors.
    num_steps: The number of gradient steps, an int32 scalar.
    hparams: Optimizer, momentum, weight decay, and the default learning rate.
    seed: Seed of random layers such as dropout, an int32 tensor of shape [2];
      each step derives its own. None: models are called in evaluation mode.
    carry: The initial carry, a nested structure of tensors.
    trainable: Python bools in the structure of `weights`; weights with False
      stay bit-identical. None: all are trained.
    decays: Python bools in the structure of `weights`: which weights decay.
      None: all decay.
    learning_rate: A computed rate, a float32 scalar, instead of the rate of
      `hparams`; or a function from the step to its rate.
    round_num: The round, for `scheduled_rate`.
    differentiate: `(gradient_at, trained) -> Gradient` chooses the gradient of
      a step. `trained` is the tuple of trained weights, and `gradient_at`
      differentiates the loss of this step at any such tuple, on the same batch.
      Sharpness-aware minimisation computes the gradient at `trained`, then the
      gradient at weights perturbed along it. Further arguments of `gradient_at`
      are passed to `loss_fn`, for example other batches. Weight decay is added
      afterwards, at `trained`.
    project: `(trained) -> trained` projects the weights onto a feasible set
      after each step. None: no projection.
    moments: The moments of an earlier call with the same weights, from which
      the optimizer goes on. None: it starts anew.

  Returns:
    A `TrainingResult`.
  """
  weights = tf.nest.map_structure(tf.convert_to_tensor, weights)
  all_weights = tf.nest.map_structure(lambda w: True, weights)
  if trainable is None:
    trainable = all_weights
  if decays is None:
    decays = all_weights
  moving = weight_masks.take(weights, trainable)
  assemble = functools.partial(weight_masks.put, weights, trainable)

  if learning_rate is None:
    if not isinstance(hparams, hyperparameters.LocalHParams):
      raise TypeError(
        "train needs a learning_rate, or hyper-parameters with one: a"
        f" hyperparameters.LocalHParams, got {type(hparams).__name__}"
      )
    learning_rate = scheduled_rate(hparams, round_num)
  rate_of_step = learning_rate if callable(learning_rate) else None
  first_rate = rate_of_step(tf.constant(0)) if rate_of_step else learning_rate
  decaying = weight_masks.take(decays, trainable)
  groups = _optimizers(hparams, first_rate, decaying)
  optimizer_states = _initial_states(groups, moving)
  if moments is not None:
    optimizer_states = tuple(
      state | kept
      for state, kept in zip(optimizer_states, moments, strict=True)
    )

  count = _step_count.get()
  if count is not None:
    # The graph of a step takes long to trace, and its values are not needed.
    carry = tf.nest.map_structure(tf.convert_to_tensor, carry)
    count.add(num_steps, _num_gradients(differentiate, moving, carry))
    return TrainingResult(
      assemble(moving),
      carry,
      tf.constant(0.0),
      _moments(groups, optimizer_states),
    )

  decay = 0.0 if hparams.optimizer == "adamw" else hparams.weight_decay

  def mode_of(step):
    if seed is None:
      return modes.evaluation()
    # Folded, because batches are drawn from the seed itself.
    return modes.training(
      lambda: randomness.fold(seed, randomness.Purpose.LAYERS, step)
    )

  current = modes.moving_statistics() if seed is not None else {}
  names = sorted(current)

  def statistics_of(running):
    # No scope if there are no statistics, or if they are not updated.
    if not names:
      return contextlib.nullcontext({})
    return modes.with_statistics(dict(zip(names, running, strict=True)))

  def take_step(step, moving_now, states, carried, loss_sum, running):
    moved_statistics = []

    def gradient_at(point, *options):
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(point)
        with mode_of(step) as mode, statistics_of(running) as statistics:
          loss, carry_after = loss_fn(assemble(point), step, carried, *options)
          penalty = mode and mode.penalty()
        moved_statistics.append([statistics[each] for each in names])
        if penalty is not None:
          loss += penalty
      gradients = tape.gradient(
        loss, point, unconnected_gradients=tf.UnconnectedGradients.ZERO
      )
      # The gradient of an embedding table is an IndexedSlices.
      gradients = tuple(map(tf.convert_to_tensor, gradients))
      return Gradient(loss, carry_after, gradients)

    loss, carry_after, gradients, takes_step = differentiate(
      gradient_at, moving_now
    )
    before = moving_now, states
    if decay:
      gradients = tuple(
        g + decay * w if is_decaying else g
        for g, w, is_decaying in zip(
          gradients, moving_now, decaying, strict=True
        )
      )
    found = []
    for (group, optimizer), state in zip(groups, states, strict=True):
      if rate_of_step:
        rate = {tff.learning.optimizers.LEARNING_RATE_KEY: rate_of_step(step)}
        state = optimizer.set_hparams(state, rate)
      state, moved = optimizer.next(
        state,
        weight_masks.take(moving_now, group),
        weight_masks.take(gradients, group),
      )
      found.append(state)
      moving_now = weight_masks.put(moving_now, group, moved)
    if project is not None:
      moving_now = project(moving_now)
    states_after = tuple(found)
    if tf.nest.flatten(takes_step):
      moving_now, states_after = tf.nest.map_structure(
        lambda new, old: tf.where(takes_step, new, old),
        (moving_now, states_after),
        before,
      )
    return (
      step + 1,
      moving_now,
      states_after,
      carry_after,
      loss_sum + loss,
      # Only the first gradient of a step updates statistics.
      tuple(moved_statistics[0]),
    )

  _, moving, states, carry, loss_sum, running = tf.while_loop(
    lambda step, *_: step < num_steps,
    take_step,
    (
      tf.constant(0),
      moving,
      optimizer_states,
      tf.nest.map_structure(tf.convert_to_tensor, carry),
      tf.constant(0.0),
      tuple(tf.convert_to_tensor(current[each]) for each in names),
    ),
    # Steps depend on each other; without this TensorFlow keeps the
    # intermediate values of ten of them.
    parallel_iterations=1,
  )
  if names:
    current.update(zip(names, running, strict=True))
  return TrainingResult(
    assemble(moving),
    carry,
    loss_sum / tf.cast(tf.maximum(num_steps, 1), tf.float32),
    _moments(groups, states),
  )


def cross_entropy(logits, y, weights: Any = ()) -> tf.Tensor:
  """Returns the mean cross-entropy of a batch.

  Args:
    logits: [batch, classes] float32.
    y: The classes, [batch] int32.
    weights: The weights of the examples, [batch] float32; (): all are 1. The
      sum is divided by the number of examples, not by the sum of weights: a
      batch of small weights makes a small step (Federated Multi-Task Learning
      under a Mixture of Distributions, Marfoq et al.; NeurIPS 2021).

  Returns:
    A float32 scalar.
  """
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
    labels=y, logits=logits
  )
  if tf.nest.flatten(weights):
    losses *= weights
  return tf.reduce_mean(losses)


def classification_loss(
  predict: Callable[[Any, tf.Tensor], tf.Tensor],
  penalty: Callable[[Any], tf.Tensor] | None = None,
) -> Callable[[Any, Batch], tf.Tensor]:
  """Makes the loss of a batch: cross-entropy plus an optional penalty.

  Args:
    predict: `(weights, x) -> logits`.
    penalty: `(weights) -> a float32 scalar` added to the loss, for example a
      proximal term.

  Returns:
    `(weights, batch) -> loss`, a float32 scalar.
  """

  def loss(weights, batch):
    value = cross_entropy(predict(weights, batch.x), batch.y, batch.weights)
    if penalty is not None:
      value += penalty(weights)
    return value

  return loss


def train_on_batches(
  loss: Callable[[Any, Batch], tf.Tensor],
  weights: Any,
  data: client_dataset.ClientDataset,
  num_steps,
  seed,
  hparams: hyperparameters.LocalWorkHParams,
  *,
  example_weights: Any = (),
  **options: Any,
) -> TrainingResult:
  """Trains on batches from all of a client's examples.

  Args:
    loss: `(weights, batch) -> loss`, a float32 scalar.
    weights: The initial weights.
    data: The client's data.
    num_steps: The number of gradient steps, an int32 scalar.
    seed: An int32 tensor of shape [2]; determines the batches and the draws of
      random layers.
    hparams: The batch size, and the options of `train`.
    example_weights: `Batch.weights` of all examples, see `pooled_batches`.
    **options: `trainable`, `learning_rate`, `round_num` and `differentiate` of
      `train`.

  Returns:
    A `TrainingResult` without carry.
  """
  batches = pooled_batches(
    data, num_steps, hparams.batch_size, seed, example_weights
  )

  def loss_fn(current, step, carry):
    return loss(current, batches(step)), carry

  return train(loss_fn, weights, num_steps, hparams, seed=seed, **options)


def train_on_pool(
  predict: Callable[[Any, tf.Tensor], tf.Tensor],
  weights: Any,
  data: client_dataset.ClientDataset,
  num_steps,
  seed,
  hparams: hyperparameters.LocalWorkHParams,
  *,
  penalty: Callable[[Any], tf.Tensor] | None = None,
  **options: Any,
) -> TrainingResult:
  """Trains with cross-entropy on batches from all of a client's examples.

  Args:
    predict: `(weights, x) -> logits`.
    weights: The initial weights.
    data: The client's data.
    num_steps: The number of gradient steps, an int32 scalar.
    seed: An int32 tensor of shape [2]; determines the batches and the draws of
      random layers.
    hparams: The batch size, and the options of `train`.
    penalty: Added to the loss, and to the reported loss, see
      `classification_loss`.
    **options: Passed to `train_on_batches`.

  Returns:
    A `TrainingResult` without carry.
  """
  return train_on_batches(
    classification_loss(predict, penalty),
    weights,
    data,
    num_steps,
    seed,
    hparams,
    **options,
  )
