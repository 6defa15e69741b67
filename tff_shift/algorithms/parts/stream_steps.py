"""Steps on the batch of a time step, and predictions of batches.

Methods of test-time adaptation take few steps, each on all examples that a
client has received at once. Their models normalise a batch by its own moments,
where they have batch normalisation, and predict it as one.

Choices:
  * Methods that depend on their batch get all examples of a client at a time
    step, in one call, of any size.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
from tff_shift.data import client_dataset
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.models import modes
from tff_shift.models import split_model


@dataclasses.dataclass(frozen=True)
class StreamHParams(adaptation.ScoredHParams):
  """Hyper-parameters of the steps on the batch of a time step."""

  adaptation_steps: int = hyperparameters.hparam(
    1,
    "Gradient steps for the batch of a time step; 0: the model stays.",
    minimum=0,
  )
  learning_rate: float = hyperparameters.hparam(
    1e-3,
    "Learning rate of these steps; 0: nothing moves.",
    minimum=0,
    published=True,
  )
  optimizer: str = hyperparameters.hparam(
    "sgd",
    "Optimizer of these steps; its moments are kept between batches.",
    choices=("sgd", "adam"),
  )
  momentum: float = hyperparameters.hparam(
    0.0, "Momentum of sgd; 0: plain gradient descent.", minimum=0, maximum=1
  )
  weight_decay: float = hyperparameters.hparam(
    0.0,
    "Weight decay: added to the gradient as weight_decay * weight; 0: none.",
    minimum=0,
  )
  normalize_by: str = hyperparameters.hparam(
    "batch",
    "What batch normalisation uses: batch, the moments of the batch, as"
    " published; source, the running statistics of pre-training.",
    choices=("batch", "source"),
  )

  def check_together(self) -> None:
    """Refuses a momentum that the optimizer ignores."""
    super().check_together()
    hyperparameters.refuse_ignored(self, "momentum", "optimizer", "sgd")

  @property
  def training(self) -> hyperparameters.LocalHParams:
    """The hyper-parameters for `local_training`."""
    return hyperparameters.LocalHParams(
      learning_rate=self.learning_rate,
      optimizer=self.optimizer,
      momentum=self.momentum,
      weight_decay=self.weight_decay,
    )


def normalizes_by_batch(
  model: split_model.SplitModel, hparams: StreamHParams
) -> bool:
  """Returns whether a prediction depends on the batch."""
  return bool(model.statistics) and hparams.normalize_by == "batch"


def normalizing(
  model: split_model.SplitModel, hparams: StreamHParams
) -> contextlib.AbstractContextManager[Any]:
  """Opens the scope in which the model normalises as chosen."""
  if normalizes_by_batch(model, hparams):
    return modes.by_batch()
  return contextlib.nullcontext()


def descend(
  loss_fn: Callable[[Any], tf.Tensor],
  weights: Any,
  moments: Any,
  data: adaptation.AdaptationData,
  hparams: StreamHParams,
) -> local_training.TrainingResult:
  """Takes the steps for the batch of a time step.

  Dropout is off, and regularizers do not count.

  Args:
    loss_fn: `(weights) -> loss` of the batch, a float32 scalar.
    weights: The initial weights.
    moments: See `local_training.initial_moments`.
    data: The client's data; without unlabelled examples, no step is taken.
    hparams: The hyper-parameters.
  """
  return local_training.train(
    lambda current, step, carry: (loss_fn(current), carry),
    weights,
    num_steps(hparams, data),
    hparams.training,
    seed=None,
    moments=moments,
  )


def num_steps(
  hparams: StreamHParams, data: adaptation.AdaptationData
) -> tf.Tensor:
  """Returns the number of steps; 0 without unlabelled examples."""
  has_examples = tf.minimum(adaptation.num_stream_examples(data), 1)
  return hparams.adaptation_steps * has_examples


def predict(
  model: split_model.SplitModel,
  hparams: StreamHParams,
  weights: split_model.SplitWeights,
  examples: client_dataset.ClientDataset,
) -> tf.Tensor:
  """Predicts the logits of evaluation data, by batch if normalised so."""
  if not normalizes_by_batch(model, hparams):
    return evaluation.predict(model, weights, examples.x)
  with normalizing(model, hparams):
    return evaluation.predict_as_one(
      lambda x: model.predict(weights, x), examples, model.num_classes
    )
