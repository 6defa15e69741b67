"""Rounds of two phases that adapt a shared backbone and personal heads.

Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under Distribution
Shift (Park, Joe, Kim, Im, Kwon; 2026), eq. 4 and 6 to 8, for any learning rate:

  1. A client estimates the label distribution of its stream, which weights the
     risk on its labelled data (eq. 4), and updates backbone and head together
     (eq. 6). The server averages the backbones (eq. 7).
  2. With the averaged backbone fixed, the client updates its head (eq. 8).
"""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.techniques import adaptation


@dataclasses.dataclass(frozen=True)
class TwoPhaseHParams(
  adaptation.LabelShiftHParams, hyperparameters.LocalWorkHParams
):
  """Hyper-parameters of eq. 6 to 8, without the learning rate."""

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


class ClientState(NamedTuple):
  """A client's state.

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


def build(
  model: split_model.SplitModel,
  hparams: TwoPhaseHParams,
  *,
  initial_rate: float,
  initial_dynamics: Callable[[], Any] = lambda: (),
  observe: Callable[
    [ClientState, split_model.SplitWeights, adaptation.AdaptationData],
    ClientState,
  ] = lambda state, weights, data: state,
) -> algorithm.AlgorithmSpec:
  """Builds the spec of an algorithm with two phases.

  Args:
    model: The model; its initial weights are the pre-trained ones.
    hparams: The hyper-parameters.
    initial_rate: The learning rate before the first observation.
    initial_dynamics: `() -> dynamics` of a client's first state.
    observe: `(client_state, weights, data) -> client_state` sets the learning
      rate, given the client's weights before its update.

  Returns:
    The spec. A client's state is a `ClientState`.
  """

  def initial_client_state(seed, weights):
    del weights
    return ClientState(
      head=model.initial_weights(seed).head,
      classes=tf.fill([model.num_classes], 1.0 / model.num_classes),
      learning_rate=tf.constant(initial_rate, tf.float32),
      dynamics=initial_dynamics(),
    )

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
      learning_rate=state.learning_rate,
    )

  def train_client(backbone, state, data, round_num):
    weights = split_model.SplitWeights(backbone, state.head)
    state = observe(state, weights, data)
    state = state._replace(
      classes=adaptation.estimate_classes(model, hparams, weights, data)
    )
    trained = descend(
      model.predict,
      weights,
      data.labelled,
      state,
      local_training.num_local_steps(hparams, data.labelled, round_num),
      randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num),
    )  # Eq. 6.
    return algorithm.ClientResult(
      # The mean update, added to the old backbone, gives eq. 7.
      update=tf.nest.map_structure(
        tf.subtract, trained.weights.backbone, backbone
      ),
      client_state=state._replace(head=trained.weights.head),
      loss=trained.loss,
    )

  def personalize_client(backbone, state, data, round_num):
    # The backbone is fixed, so each example is embedded only once.
    examples = data.labelled._replace(
      x=adaptation.embed(model, backbone, data.x)
    )
    trained = descend(
      model.classify,
      state.head,
      examples,
      state,
      hparams.head_epochs
      * local_training.epoch_steps(examples, hparams.batch_size),
      randomness.fold(data.seed, randomness.Purpose.PERSONALIZE, round_num),
    )  # Eq. 8.
    return algorithm.PersonalResult(
      state._replace(head=trained.weights), trained.loss
    )

  def predict_as_client(backbone, state, data, examples):
    del data  # The state contains the estimate of the stream.
    weights = split_model.SplitWeights(backbone, state.head)
    return evaluation.predict(model, weights, examples.x)

  return algorithm.AlgorithmSpec(
    initial_weights=model.initial_backbone,
    initial_client_state=initial_client_state,
    train_client=train_client,
    personalize_client=personalize_client,
    predict_as_client=predict_as_client,
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
