"""MEMO: a model adapts to each example alone, before it predicts it.

MEMO: Test Time Robustness via Adaptation and Augmentation (Zhang, Levine, Finn;
NeurIPS 2022), on a model of federated training. Two baselines of Federated
Learning under Evolving Distribution Shifts: MEMO (G) adapts the global model of
FedAvg, MEMO (P) the one that a client has fine-tuned (FedAvgFT).

For an example x, with B augmentations a_i(x) and starting from the weights w,

    pbar(w) = (1 / B) sum_i softmax f(a_i(x); w)
    w <- w - eta grad H(pbar(w)),    H(p) = -sum_j p_j log p_j

for some steps, on all weights; what is predicted is f(x; w) of x itself. Then
the weights are forgotten. H is the entropy of the mean prediction: it is small
where the model is certain, and of the same class for all augmentations.

What leaves a client: the change of all weights, and the mean training loss.
What is adapted or fine-tuned does not; training knows nothing of it.

Where the papers are silent:
  * Whether the server adapts too. In MEMO (G) it does. In MEMO (P) it predicts
    with the global model as it is: the server of T3A, the other method of the
    FedEvolve paper that adapts fine-tuned models at test time, has FedAvgFT's
    accuracy to the digit (Table 1). For MEMO the tables do not tell.
  * Steps: the FedEvolve paper has 3, and 32 augmentations; MEMO takes one.
  * The rate: 0.005 and plain gradient descent are MEMO's for CIFAR-10. A rate
    of 0 is that of training. The program that the FedEvolve paper builds on
    (that of FedTHE) means to set 0.0005, but leaves the rate and the optimizer
    of training in force. Here optimizers start anew with each example.
  * A step draws augmentations of its own. The draws depend on the client and on
    the pixels of the example, not on where it stands among others.
  * Of the image before the chains nothing is flipped or cropped, unless asked
    for: see `techniques/augmentations.py`.
  * Pixels from outside are 128 in all channels, see there.
  * Points have no augmentations: the paper has dashes for them. `none` is the
    entropy of the prediction for the example as it is.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_avg_ft
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning import sizes
from tff_shift.models import split_model
from tff_shift.techniques import augmentations
from tff_shift.techniques import image_operations
from tff_shift.techniques import test_time_adaptation

SCENARIOS = ("evolving",)
RUNNING_STATISTICS = algorithm.ONE_MODEL


@dataclasses.dataclass(frozen=True)
class HParams(fed_avg_ft.HParams):
  """Hyper-parameters of MEMO; those of fine-tuning count if `personalized`."""

  personalized: bool = hyperparameters.hparam(
    False,
    "Clients adapt what they have fine-tuned, and the server does not adapt,"
    " MEMO (P); else both adapt the global model, MEMO (G).",
  )
  test_time_steps: int = hyperparameters.hparam(
    3,
    "Gradient steps on each example that is predicted; 0 is fed_avg, or"
    " fed_avg_ft if personalized.",
    minimum=0,
  )
  test_time_learning_rate: float = hyperparameters.hparam(
    0.005,
    "The learning rate of these steps. 0: that of training, without its fall.",
    minimum=0.0,
  )
  test_time_optimizer: str = hyperparameters.hparam(
    "sgd",
    "The optimizer of these steps, without momentum or weight decay; new for"
    " each example.",
    choices=("sgd", "adam"),
  )
  augmentation: str = hyperparameters.hparam(
    "augmix",
    "What an example becomes: augmix, random chains of operations on images;"
    " none, itself, for inputs that are no images.",
    choices=("augmix", "none"),
  )
  num_augmentations: int = hyperparameters.hparam(
    32, "Augmentations of an example in a step, with augmix.", minimum=1
  )
  augmentation_strength: float = hyperparameters.hparam(
    1.0,
    "The largest level of an operation: 1 rotates by up to 3 degrees, 10 by"
    " 30.",
    minimum=0.1,
    maximum=10.0,
  )
  augmentation_flip: bool = hyperparameters.hparam(
    False, "Half of the augmentations start from the mirror image."
  )
  augmentation_crop: int = hyperparameters.hparam(
    0,
    "Augmentations start from an image that is moved by up to so many pixels;"
    " 0 is none.",
    minimum=0,
  )
  augmentation_fill: int = hyperparameters.hparam(
    image_operations.FILL,
    "Value of pixels that come from outside of a rotated, sheared or translated"
    " image, in all channels: 128, mid-grey, in MEMO's program; 0 is black.",
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
    weights: The weights to start from.
    x: The example, of the model's input shape and dtype.
    seed: An int32 tensor of shape [2]; fixes the augmentations.

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
  examples: local_training.ClientData,
  seed,
) -> tf.Tensor:
  """Predicts each example with weights that are adapted to it alone.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    weights: The weights to start from, at every example.
    examples: The examples; their classes are not looked at.
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
  """The functions of MEMO; see `algorithm.AlgorithmSpec`.

  Args:
    model: The model, of images unless there is no augmentation.
    hparams: Hyper-parameters.

  Returns:
    The functions: those of FedAvg or FedAvgFT but for the predictions.

  Raises:
    ValueError: If there is no augmentation for what the model takes.
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
