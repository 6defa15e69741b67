"""Distillation: a model learns what others say of inputs without classes.

Distilling the Knowledge in a Neural Network (Hinton, Vinyals, Dean; 2015).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.models import split_model
from tff_shift.techniques import public_inputs


@dataclasses.dataclass(frozen=True)
class DistillationHParams(hyperparameters.LocalHParams):
  """Hyper-parameters of distillation on public inputs."""

  distillation_weight: float = hyperparameters.hparam(
    0.1, "alpha: weight of the loss of distillation.", minimum=0
  )
  temperature: float = hyperparameters.hparam(
    2.0,
    "T, by which logits are divided before softmax; above 1 evens out what the"
    " teacher says.",
    minimum=0,
    exclusive_minimum=True,
  )
  public_data: str = hyperparameters.hparam(
    "uniform",
    "The public inputs: uniform noise, or for images digits (scikit-learn's).",
    choices=public_inputs.NAMES,
  )
  public_examples: int = hyperparameters.hparam(
    200, "The number of public inputs.", minimum=1
  )
  public_bound: float = hyperparameters.hparam(
    1.0,
    "Public inputs that are no images are uniform up to this size.",
    minimum=0,
    exclusive_minimum=True,
  )


@dataclasses.dataclass(frozen=True)
class Distillation:
  """Distillation on fixed inputs.

  Attributes:
    model: The model of teacher and student.
    x: The inputs, [num_inputs, ...], constants of the graph.
    temperature: T, by which logits are divided before softmax.
    weight: What a loss is multiplied by.
    batch_size: The number of inputs in a batch.
  """

  model: split_model.SplitModel
  x: np.ndarray
  temperature: float
  weight: float
  batch_size: int

  def probabilities(self, weights) -> tf.Tensor:
    """Returns softmax(logits / T), [num_inputs, num_classes] float32."""
    logits = evaluation.predict(self.model, weights, tf.constant(self.x))
    return tf.nn.softmax(
      tf.ensure_shape(logits, [len(self.x), self.model.num_classes])
      / self.temperature
    )

  def loss(self, targets, num_steps, seed) -> Callable[[Any, Any], tf.Tensor]:
    """Makes the loss weight CE(targets, softmax(logits / T)) of batches.

    Args:
      targets: The teacher's probabilities, [num_inputs, num_classes] float32.
      num_steps: The number of batches, an int32 scalar.
      seed: An int32 tensor of shape [2]; fixes the batches.

    Returns:
      `(weights, step) -> loss`, float32 scalar.
    """
    # The targets go where classes go elsewhere, and no gradient through them.
    public = local_training.ClientData(
      tf.constant(self.x),
      tf.stop_gradient(targets),
      np.array([len(self.x)], np.int32),
      seed,
    )
    batches = local_training.pooled_batches(
      public, num_steps, self.batch_size, seed
    )

    def loss_fn(weights, step):
      batch = batches(step)
      logits = self.model.predict(weights, batch.x)
      losses = tf.nn.softmax_cross_entropy_with_logits(
        batch.y, logits / self.temperature
      )
      return self.weight * tf.reduce_mean(losses)

    return loss_fn


def build(
  model: split_model.SplitModel, hparams: DistillationHParams
) -> Distillation:
  """Builds distillation on public inputs.

  Args:
    model: The model.
    hparams: Hyper-parameters.

  Returns:
    The distillation.

  Raises:
    ValueError: If the model does not take such inputs.
  """
  x = public_inputs.make(
    hparams.public_data, model, hparams.public_examples, hparams.public_bound
  )
  return Distillation(
    model,
    x,
    hparams.temperature,
    hparams.distillation_weight,
    hparams.batch_size,
  )
