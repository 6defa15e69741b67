"""The hyper-parameters of pre-training, see `pretraining`.

This module does not import TensorFlow: command lines build their flags from it.
"""

import dataclasses

from tff_shift.learning import hyperparameters


@dataclasses.dataclass(frozen=True)
class PretrainingHParams(hyperparameters.HParams):
  """Hyper-parameters of pre-training."""

  max_epochs: int = hyperparameters.hparam(
    30, "Maximum number of epochs.", minimum=1
  )
  patience: int = hyperparameters.hparam(
    5,
    "Early stopping: the number of consecutive epochs without a smaller"
    " cross-entropy on the held-out data after which training ends.",
    minimum=1,
  )
  batch_size: int = hyperparameters.hparam(32, "Examples per batch.", minimum=1)
  optimizer: str = hyperparameters.hparam(
    "adam",
    "The optimizer; its state is reset every epoch.",
    choices=("sgd", "adam", "adamw"),
  )
  learning_rate: float = hyperparameters.hparam(
    1e-3, "The learning rate.", minimum=0, exclusive_minimum=True
  )
  momentum: float = hyperparameters.hparam(
    0.0,
    "Momentum of sgd; 0: plain gradient descent.",
    minimum=0,
    maximum=1,
  )
  weight_decay: float = hyperparameters.hparam(
    0.0,
    "Weight decay: added to the gradient as weight_decay * weight (sgd, adam)"
    " or decoupled from it (adamw); 0: none.",
    minimum=0,
  )
