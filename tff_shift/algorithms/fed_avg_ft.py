"""FedAvgFT: FedAvg, then every client fine-tunes the global model.

Federated Evaluation of On-device Personalization (Wang, Mathews, Kiddon,
Eichner, Beaufays, Ramage; 2019, arXiv:1910.10252). The baseline FedAvg + FT of
Federated Learning under Evolving Distribution Shifts: the server model is
FedAvg's, and a client predicts with a copy fine-tuned on its own training data.

What leaves a client: its model update, and the mean training loss. The
fine-tuned model stays.

Choices:
  * In the FedDRM paper "700 rounds and 100 local steps"; its program takes
    1,000 steps in the last 100 of 800 rounds, at 4 % of the initial rate and
    less. Here all rounds are FedAvg's. Once per evaluation each client takes
    100 steps from the model of the round, at the rates of the rounds that would
    follow (10 steps each); the cosine ends with these steps. They come on top
    of the rounds. After 800 rounds no rate is left for them: `rounds=700` and
    `fine_tuning_steps=1000` are the program (results/guidance.md),
    `fine_tuning_learning_rate` sets the rate.
  * In evolving domains a personal epoch minimises the cross-entropy with the
    optimizer and rate of training (`personalization_epochs`).
  * A client predicts with the running statistics that fine-tuning has updated.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")
RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedAvgFT."""

  fine_tuning_epochs: int = hyperparameters.hparam(
    1,
    "Epochs of fine-tuning on the client's training data before it predicts;"
    " 0: FedAvg.",
    minimum=0,
  )
  fine_tuning_steps: int = hyperparameters.hparam(
    0,
    "Number of gradient steps of fine-tuning; if above 0, replaces"
    " fine_tuning_epochs.",
    minimum=0,
  )
  fine_tuning_learning_rate: float = hyperparameters.hparam(
    0.0,
    "Learning rate of fine-tuning. 0: the rate of the following rounds, of"
    " local_steps each, which continues to fall with a schedule.",
    minimum=0.0,
  )


def fine_tune(
  model: split_model.SplitModel,
  hparams: hyperparameters.LocalHParams,
  num_steps: Any,
  weights: split_model.SplitWeights,
  data: client_dataset.ClientDataset,
  **options: Any,
) -> split_model.SplitWeights:
  """Fine-tunes weights with cross-entropy on a client's training data.

  Args:
    model: The model.
    hparams: Optimizer, learning rate and batch size.
    num_steps: The number of gradient steps, an int32 scalar.
    weights: The initial weights.
    data: The client's data.
    **options: `trainable` and `learning_rate` of `local_training.train`.

  Returns:
    The fine-tuned weights.
  """
  return local_training.train_on_pool(
    model.predict,
    weights,
    data,
    num_steps,
    randomness.fold(data.seed, randomness.Purpose.PERSONALIZE),
    hparams,
    **options,
  ).weights


def _fine_tuning_rate(
  hparams: HParams, data: client_dataset.ClientDataset, round_num: Any
) -> float | Callable[[Any], tf.Tensor]:
  """Returns the rate of fine-tuning, or a function from the step to it."""
  if hparams.fine_tuning_learning_rate:
    return hparams.fine_tuning_learning_rate
  if not hparams.has_schedule:
    return hparams.learning_rate
  # A client that takes part in every round and is never a straggler.
  on_time = dataclasses.replace(hparams, straggler_ratio=0.0)
  steps = local_training.num_local_steps(on_time, data, round_num)
  steps = tf.maximum(steps, 1)  # Without examples the rate is not used.
  return lambda step: local_training.scheduled_rate(
    hparams, round_num + step // steps
  )


def prepare_client(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: split_model.SplitWeights,
  data: client_dataset.ClientDataset,
  round_num: Any,
  **options: Any,
) -> split_model.SplitWeights:
  """Fine-tunes weights for a client's predictions, according to `hparams`.

  Args:
    model: The model.
    hparams: Length and rate of fine-tuning.
    weights: The initial weights.
    data: The client's data.
    round_num: The number of completed rounds, an int32 scalar.
    **options: `trainable` of `local_training.train`.

  Returns:
    The fine-tuned weights.
  """
  epoch_steps = local_training.epoch_steps(data, hparams.batch_size)
  num_steps = hparams.fine_tuning_epochs * epoch_steps
  if hparams.fine_tuning_steps:
    # A client without examples has no batches.
    num_steps = hparams.fine_tuning_steps * local_training.has_examples(data)
  return fine_tune(
    model,
    hparams,
    num_steps,
    weights,
    data,
    learning_rate=_fine_tuning_rate(hparams, data, round_num),
    **options,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedAvgFT; see `algorithm.AlgorithmSpec`."""
  return algorithm.AlgorithmSpec(
    initial_weights=model.initial_weights,
    train_client=local_training.allows_padding(
      lambda weights, _, data, round_num: fed_avg.train_client(
        model, hparams, weights, data, round_num
      )
    ),
    prepare_client=local_training.allows_padding(
      lambda weights, _, data, round_num: prepare_client(
        model, hparams, weights, data, round_num
      )
    ),
    predict_as_client=local_training.allows_padding(
      lambda _, personal_weights, data, examples: (
        evaluation.predict(model, personal_weights, examples.x)
      )
    ),
    predict_as_server=lambda weights, _, examples: evaluation.predict(
      model, weights, examples.x
    ),
  )
