"""The hyper-parameters of pre-training, see `pretraining`.

Does not import TensorFlow: command lines define and check their flags by it.
"""

import dataclasses

from tff_shift.learning import hyperparameters


@dataclasses.dataclass(frozen=True)
class PretrainingHParams(hyperparameters.HParams):
  """How the global model is trained before deployment."""

  max_epochs: int = hyperparameters.hparam(
    30, "Passes over the training data at most.", minimum=1
  )
  patience: int = hyperparameters.hparam(
    5,
    "Training ends after so many epochs in a row without a smaller"
    " cross-entropy on the held-out data.",
    minimum=1,
  )
  batch_size: int = hyperparameters.hparam(
    32, "Examples in a batch.", minimum=1
  )
  optimizer: str = hyperparameters.hparam(
    "adam",
    "The optimizer; new in every epoch.",
    choices=("sgd", "adam", "adamw"),
  )
  learning_rate: float = hyperparameters.hparam(
    1e-3, "The learning rate.", minimum=0, exclusive_minimum=True
  )
  momentum: float = hyperparameters.hparam(
    0.0,
    "Momentum of sgd; 0 is plain gradient descent.",
    minimum=0,
    maximum=1,
  )
  weight_decay: float = hyperparameters.hparam(
    0.0,
    "Added to the gradient as weight_decay * weight (sgd, adam), or decoupled"
    " from it (adamw); 0 is none.",
    minimum=0,
  )
