"""Rounds that adapt a deployed model, in two phases or without communication.

Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under Distribution
Shift (Park, Joe, Kim, Im, Kwon; 2026), eq. 4 and 6 to 8, for any learning rate:

  1. A client estimates the label distribution of its stream, which weights the
     risk on its labelled data (eq. 4), and updates backbone and head together
     (eq. 6). The server averages the backbones (eq. 7).
  2. With the averaged backbone fixed, the client updates its head (eq. 8).

The program that the authors released (github.com/h2w1/Fed-ADE, commit ad36802)
makes other updates, `variant=program`: a client minimises the entropy of its
predictions for the whole batch of its stream, by steps of the head alone and
then by steps of all weights. Batch normalisation normalises by this batch, and
its running statistics move. The averaged backbone is sent to nobody: each
client keeps its own model. Each of these differences is a hyper-parameter.
A table in BUILD_NOTES.md, "Paper, program and tff_shift", compares the two and
this package.

Choices:
  * 4 local epochs in each of the two updates, over the labelled data
    (`local_epochs`, `head_epochs`).
  * Clients outside of the cohort receive the new backbone, and keep head and
    caches.
  * -sum p log(p + 1e-10) of the program is -sum p log p, from the log-softmax.
  * `share=nothing`: the update that the server averages is sent, as nominally
    in the program, and no client receives it, so that rounds and participation
    are those of the driver. Running statistics do not leave a client. With
    `share=backbone` they are the client's own too, as in SiloBN.
  * `running_statistics=moving` without a signal in training mode
    (`summary=softmax`, FixLR): the pass in training mode over the stream's
    batch, which moves the statistics once, is part of the update. With equal
    bounds Fed-ADE is therefore FixLR bit for bit, whatever it measures.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import test_time_adaptation
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import modes
from tff_shift.models import split_model


@dataclasses.dataclass(frozen=True)
class TwoPhaseHParams(
  adaptation.LabelShiftHParams, hyperparameters.LocalWorkHParams
):
  """Hyper-parameters of eq. 6 to 8, without the learning rate."""

  variant: str = hyperparameters.variant_hparam(
    "what the authors' program of Fed-ADE computes (github.com/h2w1/Fed-ADE)"
  )
  objective: str = hyperparameters.switch_hparam(
    "What a client minimises: risk, the risk of eq. 4 on its labelled examples;"
    " entropy, the mean entropy of its predictions for its stream's batch",
    published="risk",
    program="entropy",
  )
  order: str = hyperparameters.switch_hparam(
    "The order of a client's steps: all_first, those of all weights, then those"
    " of the head; head_first, the reverse",
    published="all_first",
    program="head_first",
  )
  share: str = hyperparameters.switch_hparam(
    "What clients receive in a round: backbone, the mean of the backbones;"
    " nothing, so that each client keeps its own model",
    published="backbone",
    program="nothing",
  )
  running_statistics: str = hyperparameters.switch_hparam(
    "Running statistics of batch normalisation: fixed, those of pre-training;"
    " moving, a client normalises by its batches, and its own statistics move"
    " in its steps and in one pass over the stream's batch before them",
    published="fixed",
    program="moving",
  )
  stream_steps: int = hyperparameters.hparam(
    2,
    "With objective=entropy: gradient steps of all weights, and of the head, on"
    " the whole batch of the stream, instead of epochs.",
    minimum=0,
  )
  local_epochs: int = hyperparameters.hparam(
    4,
    "Epochs over the client's labelled examples for backbone and head (eq. 6),"
    " rounded up to whole batches; 0: use local_steps.",
    minimum=0,
  )
  head_epochs: int = hyperparameters.hparam(
    4,
    "Epochs over the same examples for the head alone (eq. 8).",
    minimum=1,
  )
  client_weighting: str = hyperparameters.hparam(
    "num_examples",
    "A client's weight in the server's mean: num_examples, the number of"
    " unlabelled examples (eq. 7), or uniform.",
    choices=("uniform", "num_examples"),
  )

  def check_together(self) -> None:
    """Refuses steps on the stream without a loss on it."""
    super().check_together()
    has_risk = hyperparameters.switch(self, "objective") == "risk"
    if has_risk and hyperparameters.is_changed(self, "stream_steps"):
      raise ValueError(
        f"stream_steps={self.stream_steps} is not allowed without"
        " objective=entropy, whose steps it counts"
      )


class ClientState(NamedTuple):
  """A client's state with the updates of the paper.

  Attributes:
    head: The weights of its personal head (the paper's phi).
    classes: Its last estimate of the stream's label distribution,
      [num_classes] float32.
    learning_rate: Its last learning rate, a float32 scalar.
    dynamics: The rest of the state that determines its rate.
  """

  head: Any
  classes: Any
  learning_rate: Any
  dynamics: Any


class OwnState(NamedTuple):
  """A client's state with any other updates.

  Attributes:
    weights: The weights of its personal head, or, if it receives nothing, those
      of its model, `SplitWeights`.
    classes: Its last estimate of the stream's label distribution,
      [num_classes] float32; () with `objective=entropy`.
    learning_rate: Its learning rate, a float32 scalar: the mean over its rounds
      of its last time step.
    dynamics: The rest of the state that determines its rate.
    rate: The learning rate of its last round, a float32 scalar; () if the
      rounds of a time step have the same rate.
    statistics: Its running statistics in the order of
      `split_model.SplitModel.statistics`; () if they are fixed.
  """

  weights: Any
  classes: Any
  learning_rate: Any
  dynamics: Any
  rate: Any
  statistics: Any


def build(
  model: split_model.SplitModel,
  hparams: TwoPhaseHParams,
  *,
  initial_rate: float,
  initial_dynamics: Callable[[], Any] = lambda: (),
  observe: Callable[
    [Any, split_model.SplitWeights, adaptation.AdaptationData, Any], Any
  ] = lambda state, weights, data, logits: state,
  needs_logits: bool = False,
  has_round_rates: bool = False,
) -> algorithm.AlgorithmSpec:
  """Builds the spec of an algorithm with these updates.

  Args:
    model: The model; its initial weights are the pre-trained ones.
    hparams: The hyper-parameters.
    initial_rate: The learning rate before the first observation.
    initial_dynamics: `() -> dynamics` of a client's first state.
    observe: `(client_state, weights, data, logits) -> client_state` sets the
      learning rate, given the client's weights before its update. `logits` are
      those of the stream's batch in training mode, [num_stream, num_classes]
      float32; () unless they are needed.
    needs_logits: Whether `observe` needs the logits.
    has_round_rates: Whether each round has its own rate, `OwnState.rate`. The
      `learning_rate` is then their mean, set by `observe` too.

  Returns:
    The spec. A client's state is a `ClientState` with the updates and rates of
    the paper, otherwise an `OwnState`.

  Raises:
    ValueError: If running statistics are to move and the model has none.
  """
  has_risk, starts_with_all, receives, is_fixed = is_published = [
    hyperparameters.switch(hparams, name) == published
    for name, published in (
      ("objective", "risk"),
      ("order", "all_first"),
      ("share", "backbone"),
      ("running_statistics", "fixed"),
    )
  ]
  if not (is_fixed or model.statistics):
    raise ValueError(
      f"running_statistics=moving is not allowed with model {model.name!r},"
      " which has no trained batch normalisation: use running_statistics=fixed,"
      " or another model (such as mini_resnet, or normalization=batch)"
    )
  names = () if is_fixed else tuple(model.statistics)
  has_two_phases = starts_with_all and receives
  has_client_state = all(is_published) and not has_round_rates

  def initial_client_state(seed, weights):
    del weights
    own = model.initial_weights(seed)
    own = own.head if receives else own
    classes = ()
    if has_risk:
      classes = tf.fill([model.num_classes], 1.0 / model.num_classes)
    rate = tf.constant(initial_rate, tf.float32)
    if has_client_state:
      return ClientState(own, classes, rate, initial_dynamics())
    return OwnState(
      own,
      classes,
      learning_rate=rate,
      dynamics=initial_dynamics(),
      rate=rate if has_round_rates else (),
      statistics=tuple(
        tf.constant(model.statistics[name], tf.float32) for name in names
      ),
    )

  def weights_of(backbone, state):
    own = state.head if has_client_state else state.weights
    return split_model.SplitWeights(backbone, own) if receives else own

  def with_weights(state, weights):
    own = weights.head if receives else weights
    if has_client_state:
      return state._replace(head=own)
    return state._replace(weights=own)

  @contextlib.contextmanager
  def own_statistics(state, *, are_fixed=False):
    """Opens the scope of the client's running statistics, if they move."""
    if not names:
      yield {}
      return
    values = dict(zip(names, state.statistics, strict=True))
    with modes.with_statistics(values, are_fixed=are_fixed) as moved:
      yield moved

  def with_statistics(state, moved):
    if not names:
      return state
    return state._replace(statistics=tuple(moved[name] for name in names))

  def descend(
    predict, weights, examples, state, num_steps, seed
  ) -> local_training.TrainingResult:
    """Takes gradient steps on the risk of eq. 4, on labelled batches."""
    class_weights = adaptation.class_weights(state.classes, examples.y)
    return local_training.train_on_batches(
      lambda current, batch: adaptation.risk(
        predict(current, batch.x), batch.y, class_weights
      ),
      weights,
      examples,
      num_steps,
      seed,
      hparams,
      learning_rate=rate_of(state),
    )

  def descend_entropy(weights, part, state, data, seed):
    """Takes gradient steps on the entropy of the whole batch of the stream."""

    def loss_fn(current, step, carry):
      del step
      logits = model.predict(current, data.stream_x)
      entropies = test_time_adaptation.entropy(tf.nn.log_softmax(logits))
      return tf.reduce_mean(entropies), carry

    return local_training.train(
      loss_fn,
      weights,
      tf.constant(hparams.stream_steps),
      hparams,
      seed=seed,
      trainable=model.weights_of(part),
      learning_rate=rate_of(state),
    )

  def rate_of(state):
    return state.rate if has_round_rates else state.learning_rate

  def update_all(weights, state, data, round_num):
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
    if not has_risk:
      return descend_entropy(weights, "full", state, data, seed)
    return descend(
      model.predict,
      weights,
      data.labelled,
      state,
      local_training.num_local_steps(hparams, data.labelled, round_num),
      seed,
    )  # Eq. 6.

  def update_head(weights, state, data, round_num):
    seed = randomness.fold(data.seed, randomness.Purpose.PERSONALIZE, round_num)
    if not has_risk:
      return descend_entropy(weights, "head", state, data, seed)
    # The backbone is fixed, so each example is embedded only once.
    examples = data.labelled._replace(
      x=adaptation.embed(model, weights.backbone, data.x)
    )
    trained = descend(
      model.classify,
      weights.head,
      examples,
      state,
      hparams.head_epochs
      * local_training.epoch_steps(examples, hparams.batch_size),
      seed,
    )  # Eq. 8.
    return trained._replace(weights=weights._replace(head=trained.weights))

  # The updates before the server's step.
  updates = [update_all]
  if not has_two_phases:
    updates.insert(1 if starts_with_all else 0, update_head)

  def train_client(backbone, state, data, round_num):
    weights = weights_of(backbone, state)
    classes = ()
    if has_risk:
      classes = estimate_classes(weights, state, data)
    with own_statistics(state) as moved:
      logits = ()
      if needs_logits or names:
        logits = logits_in_training(weights, data, round_num)
      state = observe(state, weights, data, logits)
      state = state._replace(classes=classes)
      losses = []
      for update in updates:
        trained = update(weights, state, data, round_num)
        weights = trained.weights
        losses.append(trained.loss)
    state = with_statistics(with_weights(state, weights), moved)
    return algorithm.ClientResult(
      # The mean update, added to the old backbone, gives eq. 7.
      update=tf.nest.map_structure(tf.subtract, weights.backbone, backbone),
      client_state=state,
      loss=losses[0] if has_two_phases else tf.reduce_mean(losses),
    )

  def estimate_classes(weights, state, data):
    if hparams.label_estimator == "pretrained":
      # By the running statistics of its confusion matrix.
      return adaptation.estimate_classes(model, hparams, weights, data)
    with own_statistics(state, are_fixed=True):
      return adaptation.estimate_classes(model, hparams, weights, data)

  def logits_in_training(weights, data, round_num):
    """Predicts the stream's batch in training mode."""
    seed = randomness.fold(data.seed, randomness.Purpose.LAYERS, round_num)
    with modes.training(lambda: seed):
      return model.predict(weights, data.stream_x)

  def personalize_client(backbone, state, data, round_num):
    with own_statistics(state) as moved:
      trained = update_head(weights_of(backbone, state), state, data, round_num)
    state = with_statistics(with_weights(state, trained.weights), moved)
    return algorithm.PersonalResult(state, trained.loss)

  def predict_as_client(backbone, state, data, examples):
    del data  # The state contains the estimate of the stream.
    with own_statistics(state, are_fixed=True):
      return evaluation.predict(model, weights_of(backbone, state), examples.x)

  return algorithm.AlgorithmSpec(
    initial_weights=model.initial_backbone,
    initial_client_state=initial_client_state,
    train_client=train_client,
    personalize_client=personalize_client if has_two_phases else None,
    predict_as_client=predict_as_client,
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
