"""FedAvgFT: FedAvg, then every client fine-tunes the global model.

Federated Evaluation of On-device Personalization (Wang, Mathews, Kiddon,
Eichner, Beaufays, Ramage; 2019). The baseline FedAvg + FT of Federated Learning
under Evolving Distribution Shifts: the server's model is FedAvg's, a client
predicts with the one that it fine-tuned on its own training data.

What leaves a client: the change of all weights, and the mean training loss. The
fine-tuned model does not.
"""

import dataclasses
from typing import Any

from tff_shift.algorithms import fed_avg
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import process
from tff_shift.learning import randomness
from tff_shift.models import split_model

SCENARIOS = ("evolving", "guidance")


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedAvgFT."""

  fine_tuning_epochs: int = hyperparameters.hparam(
    1,
    "Passes over the client's training data before it predicts; 0 is FedAvg.",
    minimum=0,
  )
  fine_tuning_steps: int = hyperparameters.hparam(
    0,
    "If above 0, replaces fine_tuning_epochs: so many gradient steps.",
    minimum=0,
  )


def fine_tune(
  model: split_model.SplitModel,
  hparams: hyperparameters.LocalHParams,
  num_steps: Any,
  weights: split_model.SplitWeights,
  data: local_training.ClientData,
  *,
  trainable: split_model.SplitWeights | None = None,
) -> split_model.SplitWeights:
  """Fine-tunes weights with cross-entropy on a client's training data.

  Args:
    model: The model.
    hparams: Optimizer, learning rate and batch size.
    num_steps: The number of gradient steps, an int32 scalar.
    weights: The weights to start from.
    data: The client's data.
    trainable: Which weights to train, see `local_training.train`.

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
    trainable=trainable,
  ).weights


def work(model: split_model.SplitModel, hparams: HParams) -> process.Work:
  """The functions of FedAvgFT; see `process.Work`."""

  def predict_as_client(weights, _, data, examples):
    num_steps = hparams.fine_tuning_steps or (
      hparams.fine_tuning_epochs
      * local_training.epoch_steps(data, hparams.batch_size)
    )
    personal_weights = fine_tune(model, hparams, num_steps, weights, data)
    return evaluation.predict(model, personal_weights, examples.x)

  return process.Work(
    initial_weights=model.initial_weights,
    train_client=lambda weights, _, data, round_num: fed_avg.train_client(
      model, hparams, weights, data, round_num
    ),
    predict_as_client=predict_as_client,
    predict_as_server=lambda weights, _, examples: evaluation.predict(
      model, weights, examples.x
    ),
  )
