"""MEMO: a model adapts to each example separately, before it predicts it.

MEMO: Test Time Robustness via Adaptation and Augmentation (Zhang, Levine, Finn;
NeurIPS 2022, arXiv:2110.09506), applied to a federated model. Two baselines of
Federated Learning under Evolving Distribution Shifts: MEMO (G) adapts the
global model of FedAvg, MEMO (P) a client's fine-tuned model (FedAvgFT).

For an example x, with B augmentations a_i(x) and starting from the weights w,

    pbar(w) = (1 / B) sum_i softmax f(a_i(x); w)
    w <- w - eta grad H(pbar(w)),    H(p) = -sum_j p_j log p_j

for some steps, on all weights; the prediction is f(x; w) of x itself. Then the
adapted weights are discarded. H is the entropy of the mean prediction: it is
small if the model is certain, and predicts the same class for all
augmentations.

What leaves a client: its model update, and the mean training loss. Adapted and
fine-tuned models stay; training does not depend on them.

Choices:
  * In MEMO (G) the server adapts. In MEMO (P), `personalized`, it predicts with
    the global model without adaptation: in Table 1 of the FedEvolve paper T3A's
    server equals FedAvgFT's to the digit, so the server column does not include
    the adaptation of client models. For MEMO the tables do not show this.
  * 3 steps and 32 augmentations are the FedEvolve paper's (MEMO takes one
    step), plain gradient descent at 0.005 is MEMO's on CIFAR-10. The program of
    the FedTHE paper keeps the training rate and optimizer, though it means to
    set 0.0005: `test_time_learning_rate=0`, `test_time_optimizer`.
  * Each step draws new augmentations. They depend on the client and on the
    pixels, not on the position of the example. The optimizer is reset for each
    example.
  * Points have no augmentations, and the FedEvolve paper has dashes for them:
    `augmentation=none` minimises the entropy of the prediction for the example
    itself.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_avg_ft
from tff_shift.algorithms.parts import augmentations
from tff_shift.algorithms.parts import image_operations
from tff_shift.algorithms.parts import test_time_adaptation
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import randomness
from tff_shift.learning import sizes
from tff_shift.models import split_model

SCENARIOS = ("evolving",)
RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(fed_avg_ft.HParams):
  """Hyper-parameters of MEMO; fine-tuning applies if `personalized`."""

  personalized: bool = hyperparameters.hparam(
    False,
    "MEMO (P): clients adapt their fine-tuned models, and the server does not"
    " adapt; otherwise MEMO (G): both adapt the global model.",
  )
  test_time_steps: int = hyperparameters.hparam(
    3,
    "Gradient steps for each predicted example; 0: fed_avg, or fed_avg_ft if"
    " personalized.",
    minimum=0,
  )
  test_time_learning_rate: float = hyperparameters.hparam(
    0.005,
    "Learning rate of these steps. 0: the training rate, without its schedule.",
    minimum=0.0,
  )
  test_time_optimizer: str = hyperparameters.hparam(
    "sgd",
    "Optimizer of these steps, without momentum or weight decay; reset for each"
    " example.",
    choices=("sgd", "adam"),
  )
  augmentation: str = hyperparameters.hparam(
    "augmix",
    "Augmentation of an example: augmix, random chains of operations on images;"
    " none, the example itself, for inputs that are not images.",
    choices=("augmix", "none"),
  )
  num_augmentations: int = hyperparameters.hparam(
    32, "Augmentations of an example per step, with augmix.", minimum=1
  )
  augmentation_strength: float = hyperparameters.hparam(
    1.0,
    "Largest level of an operation: 1 rotates by up to 3 degrees, 10 by up to"
    " 30.",
    minimum=0.1,
    maximum=10.0,
  )
  augmentation_flip: bool = hyperparameters.hparam(
    False, "Half of the augmentations start from the mirror image."
  )
  augmentation_crop: int = hyperparameters.hparam(
    0,
    "Maximum shift, in pixels, of the image before augmentations; 0: none.",
    minimum=0,
  )
  augmentation_fill: int = hyperparameters.hparam(
    image_operations.FILL,
    "Value of pixels from outside of a rotated, sheared or translated image, in"
    " all channels: 128, mid-grey, in MEMO's program; 0: black.",
    minimum=0,
    maximum=255,
  )


def adapt(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: split_model.SplitWeights,
  x,
  seed,
) -> split_model.SplitWeights:
  """Adapts weights to one example.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    weights: The initial weights.
    x: The example, of the model's input shape and dtype.
    seed: An int32 tensor of shape [2]; determines the augmentations.

  Returns:
    The adapted weights.
  """

  def augment(step):
    if hparams.augmentation == "none":
      return x[tf.newaxis]
    return augmentations.augment(
      x,
      randomness.fold(seed, step),
      hparams.num_augmentations,
      strength=hparams.augmentation_strength,
      flip=hparams.augmentation_flip,
      crop=hparams.augmentation_crop,
      fill=hparams.augmentation_fill,
    )

  return test_time_adaptation.descend_marginal_entropy(
    model.predict,
    weights,
    augment,
    hparams.test_time_steps,
    hyperparameters.LocalHParams(
      optimizer=hparams.test_time_optimizer,
      learning_rate=hparams.test_time_learning_rate or hparams.learning_rate,
    ),
  )


def predict(
  model: split_model.SplitModel,
  hparams: HParams,
  weights: split_model.SplitWeights,
  examples: client_dataset.ClientDataset,
  seed,
) -> tf.Tensor:
  """Predicts each example with weights adapted to this example.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    weights: The initial weights for every example.
    examples: The examples; their classes are not used.
    seed: The client's, an int32 tensor of shape [2], or zeros at the server.

  Returns:
    The logits, [num_examples, num_classes] float32.
  """
  if not hparams.test_time_steps:
    return evaluation.predict(model, weights, examples.x)
  seed = randomness.fold(seed, randomness.Purpose.TEST_TIME)

  def adapt_and_predict(history, x, domain, place):
    del domain, place
    adapted = adapt(model, hparams, weights, x, seed)
    return model.predict(adapted, x[tf.newaxis])[0], history

  return test_time_adaptation.adapt_each(
    examples.x,
    (),
    adapt_and_predict,
    domain_sizes=examples.domain_sizes,
    width=model.num_classes,
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of MEMO; see `algorithm.AlgorithmSpec`.

  Args:
    model: The model, of images unless there is no augmentation.
    hparams: Hyper-parameters.

  Returns:
    The spec of FedAvg or FedAvgFT with other predictions.

  Raises:
    ValueError: If there is no augmentation for the model's inputs.
  """
  if hparams.augmentation != "none":
    augmentations.check_images("memo without --augmentation=none", model)
    sizes.check_copies(
      "num_augmentations", hparams.num_augmentations, model.input_shape
    )
  trained = (fed_avg_ft if hparams.personalized else fed_avg).build(
    model, hparams
  )
  if hparams.personalized:
    return trained._replace(
      predict_as_client=lambda _, personal, data, examples: predict(
        model, hparams, personal, examples, data.seed
      )
    )
  return trained._replace(
    predict_as_client=lambda weights, _, data, examples: predict(
      model, hparams, weights, examples, data.seed
    ),
    predict_as_server=lambda weights, _, examples: predict(
      model, hparams, weights, examples, examples.seed
    ),
  )
