"""The server optimizers' names and hyper-parameters, see `server_optimizers`.

This module does not import TensorFlow: command lines build their flags from it.
"""

import dataclasses

from tff_shift.learning import hyperparameters


@dataclasses.dataclass(frozen=True)
class FedAvgMHParams(hyperparameters.HParams):
  """Hyper-parameters of FedAvgM."""

  learning_rate: float = hyperparameters.hparam(
    1.0, "Learning rate of the server.", minimum=0
  )
  momentum: float = hyperparameters.hparam(
    0.9,
    "The fraction of the previous step that is added to the mean update.",
    minimum=0,
    maximum=0.999,
  )


@dataclasses.dataclass(frozen=True)
class AdaptiveHParams(hyperparameters.HParams):
  """Hyper-parameters of FedAdagrad."""

  learning_rate: float = hyperparameters.hparam(
    0.1, "Learning rate of the server.", minimum=0
  )
  tau: float = hyperparameters.hparam(
    1e-3,
    "Degree of adaptivity: added to the root of the second moment, which starts"
    " at tau^2.",
    minimum=0,
    exclusive_minimum=True,
  )


@dataclasses.dataclass(frozen=True)
class FedAdamHParams(AdaptiveHParams):
  """Hyper-parameters of FedAdam and FedYogi."""

  beta_1: float = hyperparameters.hparam(
    0.9, "Decay of the first moment.", minimum=0, maximum=0.9999
  )
  beta_2: float = hyperparameters.hparam(
    0.99, "Decay of the second moment.", minimum=0, maximum=0.9999
  )


# The hyper-parameters of each server optimizer.
HPARAMS = {
  "fed_avg_m": FedAvgMHParams,
  "fed_adagrad": AdaptiveHParams,
  "fed_yogi": FedAdamHParams,
  "fed_adam": FedAdamHParams,
}
