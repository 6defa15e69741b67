"""CoTTA: a student follows a slow teacher that averages over augmentations.

Continual Test-Time Domain Adaptation (Wang, Fink, Van Gool, Dai; CVPR 2022,
arXiv:2203.13591), Algorithm 1.

Each client has a student and a teacher, which start as the pre-trained model,
the source. For the batch x of a time step,

  1. the teacher predicts x. If the mean confidence of the source on x is below
     a threshold, its prediction is the mean of the logits for augmentations of
     x instead (eq. 3, 4);
  2. the student takes a step on the mean of -sum p_teacher log p_student, on
     all weights (eq. 1);
  3. teacher <- teacher + (1 - alpha) (student - teacher) (eq. 2);
  4. each weight of the student returns to the source with a small probability
     (eq. 7, 8).

Published reading: the prediction for a batch is that of the teacher in step 1,
before the adaptation to it (scored=before). With batch normalisation all three
models normalise a batch by its own moments.

What leaves a client: the mean loss. Student and teacher stay.

A student that equals its teacher learns nothing from the teacher's plain
prediction: as long as the source is confident, nothing moves.

Choices:
  * The mean over augmentations is of logits, as in the authors' program; the
    paper's y is a prediction. Augmentations are computed only if they are
    needed; the program always computes them.
  * Augmentations are those of the program, drawn once for all images of a pass:
    brightness, contrast, saturation, hue and gamma in random order, an affine
    map (15 degrees, 1/8 of the image, scale 0.9 to 1.1) with the border
    continued, blur, a mirror image with probability 1/2, noise. They are made
    for photographs: a mirrored digit is no digit, and needs
    `--noaugmentation_flip` and a smaller `augmentation_scale`. Features get
    noise alone.
  * The optimizer's moments are kept from batch to batch, as in the program.
    Restored weights keep theirs.
  * Dropout is off, and regularizers do not count.
  * The threshold is the program's for CIFAR-10; it is 0.72 for CIFAR-100.
  * On digits the mean over augmentations is far worse than the plain
    prediction: 35 % beside 89 % (`num_augmentations=0` leaves it out).
"""

import dataclasses
import math
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import draws
from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import augmentations
from tff_shift.algorithms.parts import stream_steps
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_aggregation="each client adapts its own model"
)

# Weights of the colours in the grey image.
_GREY = (0.2989, 0.587, 0.114)
_BLUR = 2  # Pixels on each side.


@dataclasses.dataclass(frozen=True)
class HParams(stream_steps.StreamHParams):
  """Hyper-parameters of CoTTA."""

  optimizer: str = hyperparameters.hparam(
    "adam",
    "Optimizer of these steps; its moments are kept between batches.",
    choices=("sgd", "adam"),
    published=True,
  )
  teacher_memory: float = hyperparameters.hparam(
    0.999,
    "alpha: the fraction of the teacher that a step keeps; 1: the teacher stays"
    " the source, 0: it is the student.",
    minimum=0,
    maximum=1,
  )
  confidence_threshold: float = hyperparameters.hparam(
    0.92,
    "The teacher averages over augmentations if the source's mean largest"
    " probability on the batch is below it; 0: never, above 1: always.",
    minimum=0,
  )
  num_augmentations: int = hyperparameters.hparam(
    32,
    "Augmentations of a batch that the teacher averages over; 0: none.",
    minimum=0,
  )
  augmentation_noise: float = hyperparameters.hparam(
    0.005,
    "Standard deviation of the noise on augmentations: of pixels from 0 to 1,"
    " or of features.",
    minimum=0,
  )
  augmentation_scale: float = hyperparameters.hparam(
    1.0,
    "Factor of all amounts by which images are augmented; 0: they are only"
    " mirrored and noisy.",
    minimum=0,
    maximum=2,
  )
  augmentation_flip: bool = hyperparameters.hparam(
    True, "Half of the augmentations are mirror images."
  )
  restore_probability: float = hyperparameters.hparam(
    0.01,
    "The probability that a step returns a weight of the student to the source;"
    " 0: never, 1: the student stays the source.",
    minimum=0,
    maximum=1,
  )


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    student: The `SplitWeights` of the student.
    teacher: The `SplitWeights` of the teacher.
    moments: What the student's optimizer remembers.
  """

  student: Any
  teacher: Any
  moments: Any


@tf.custom_gradient
def consistency(logits, targets):
  """Computes the mean of -sum p_teacher log p_student.

  Args:
    logits: The student's, [n, num_classes] float32.
    targets: p_teacher, [n, num_classes] float32.

  Returns:
    A float32 scalar. The gradient is exactly 0 for equal predictions.
  """
  number = tf.cast(tf.shape(logits)[0], tf.float32)
  value = -tf.reduce_sum(targets * tf.nn.log_softmax(logits)) / number

  def gradient(upstream):
    return upstream / number * (tf.nn.softmax(logits) - targets), None

  return value, gradient


def restore(student: Any, source: Any, probability: float, seed) -> Any:
  """Returns random weights of the student to the source (eq. 7, 8).

  Args:
    student: A nested structure of float32 tensors.
    source: Another.
    probability: That of a weight.
    seed: An int32 tensor of shape [2].
  """
  flat = zip(*map(tf.nest.flatten, (student, source)), strict=True)
  return tf.nest.pack_sequence_as(
    student,
    [
      tf.where(
        draws.uniform(tf.shape(own), randomness.fold(seed, place))
        < probability,
        first,
        own,
      )
      for place, (own, first) in enumerate(flat)
    ],
  )


def _grey(images) -> tf.Tensor:
  """Returns grey images, [n, height, width, 1]."""
  if images.shape[-1] < 3:
    return images
  return tf.reduce_sum(images * tf.constant(_GREY), axis=-1, keepdims=True)


def _blend(images, others, share) -> tf.Tensor:
  return tf.clip_by_value(share * images + (1.0 - share) * others, 0.0, 1.0)


def jitter(images, seed, scale: float) -> tf.Tensor:
  """Changes brightness, contrast, saturation, hue and gamma in random order.

  Args:
    images: [n, height, width, channels] float32 from 0 to 1.
    seed: An int32 tensor of shape [2].
    scale: The factor of all amounts.

  Returns:
    Images of the same shape, all changed by the same amounts.
  """

  def amount(number, largest):
    return scale * draws.uniform(
      [], randomness.fold(seed, number), -largest, largest
    )

  changes = [
    lambda x: tf.clip_by_value((1.0 + amount(1, 0.4)) * x, 0.0, 1.0),
    lambda x: _blend(
      x,
      tf.reduce_mean(_grey(x), [1, 2], keepdims=True),
      1.0 + amount(2, 0.3),
    ),
    lambda x: tf.pow(x, 1.0 + amount(3, 0.3)),
  ]
  if images.shape[-1] > 1:
    changes += [
      lambda x: _blend(x, _grey(x), 1.0 + amount(4, 0.5)),
      lambda x: tf.image.adjust_hue(x, amount(5, 0.06)),
    ]
  order = draws.orders(len(changes), len(changes), randomness.fold(seed, 0))
  for place in range(len(changes)):
    images = tf.switch_case(
      order[place],
      [lambda change=change, x=images: change(x) for change in changes],
    )
  return images


def distort(images, seed, scale: float) -> tf.Tensor:
  """Rotates, shifts, scales and blurs images, whose border continues.

  Args:
    images: [n, height, width, channels] float32, of known shape but n.
    seed: An int32 tensor of shape [2].
    scale: The factor of all amounts.

  Returns:
    Images of the same shape, all mapped alike.
  """
  _, height, width, channels = images.shape

  def amount(number, largest, lowest=None):
    return scale * draws.uniform(
      [],
      randomness.fold(seed, number),
      -largest if lowest is None else lowest,
      largest,
    )

  angle = amount(0, 15.0) * (math.pi / 180.0)
  size_factor = 1.0 + amount(1, 0.1)
  shifts = [
    tf.round(amount(2 + axis, size / 8))
    for axis, size in enumerate((height, width))
  ]
  # The blur takes pixels from beyond the border, too.
  rows, columns = tf.meshgrid(
    *(
      tf.range(-_BLUR, size + _BLUR, dtype=tf.float32) - (size - 1) / 2 - shift
      for size, shift in zip((height, width), shifts, strict=True)
    ),
    indexing="ij",
  )
  cos, sin = tf.cos(angle) / size_factor, tf.sin(angle) / size_factor
  sources = (
    cos * rows - sin * columns + (height - 1) / 2,
    sin * rows + cos * columns + (width - 1) / 2,
  )
  places = [
    tf.clip_by_value(source, 0.0, size - 1.0)
    for source, size in zip(sources, (height, width), strict=True)
  ]
  lower = [tf.floor(place) for place in places]
  shares = [p - low for p, low in zip(places, lower, strict=True)]
  flat = tf.reshape(images, [-1, height * width, channels])

  def take(down, right):
    row, column = (
      tf.minimum(tf.cast(low, tf.int32) + step, size - 1)
      for low, step, size in zip(
        lower, (down, right), (height, width), strict=True
      )
    )
    taken = tf.gather(flat, tf.reshape(row * width + column, [-1]), axis=1)
    return tf.reshape(taken, [-1, *row.shape, channels])

  down, right = (share[..., tf.newaxis] for share in shares)
  upper, below = (
    (1.0 - right) * take(step, 0) + right * take(step, 1) for step in (0, 1)
  )
  found = (1.0 - down) * upper + down * below
  sigma = tf.maximum(amount(4, 0.5, 0.001), 0.001)
  kernel = tf.exp(
    -0.5 * tf.square(tf.range(-_BLUR, _BLUR + 1, dtype=tf.float32) / sigma)
  )
  kernel /= tf.reduce_sum(kernel)
  blurred = tf.add_n(
    [kernel[i] * found[:, i : i + height] for i in range(2 * _BLUR + 1)]
  )
  return tf.add_n(
    [kernel[i] * blurred[:, :, i : i + width] for i in range(2 * _BLUR + 1)]
  )


def augment(x, seed, hparams: HParams) -> tf.Tensor:
  """Draws an augmentation of a batch, the same for all of its examples.

  Args:
    x: Images, [n, height, width, channels] uint8, or features, [n, ...]
      float32.
    seed: An int32 tensor of shape [2].
    hparams: The amounts.

  Returns:
    Examples of the same shape and dtype.
  """

  def fold(number):
    return randomness.fold(seed, number)

  noises = hparams.augmentation_noise * draws.normal(tf.shape(x), fold(0))
  if x.dtype.is_floating:
    return x + noises
  scale = hparams.augmentation_scale
  images = jitter(tf.cast(x, tf.float32) / 255.0, fold(1), scale)
  images = distort(images, fold(2), scale)
  if hparams.augmentation_flip:
    images = tf.where(
      draws.uniform([], fold(3)) < 0.5, tf.reverse(images, [2]), images
    )
  images = tf.clip_by_value(images + noises, 0.0, 1.0)
  return tf.cast(tf.round(255.0 * images), tf.uint8)


def teach(
  model: split_model.SplitModel,
  hparams: HParams,
  source: split_model.SplitWeights,
  teacher: split_model.SplitWeights,
  x,
  seed,
) -> tf.Tensor:
  """Predicts a batch as the teacher does (step 1).

  Args:
    model: The model.
    hparams: The hyper-parameters.
    source: The weights of the pre-trained model.
    teacher: The weights of the teacher.
    x: The batch, [n, ...].
    seed: Determines the augmentations, an int32 tensor of shape [2].

  Returns:
    Logits, [n, num_classes] float32.
  """

  def predict(weights, x):
    with stream_steps.normalizing(model, hparams):
      return evaluation.predict(model, weights, x)

  def plain():
    return predict(teacher, x)

  if not hparams.num_augmentations or not hparams.confidence_threshold:
    return plain()

  def averaged():
    _, total = tf.while_loop(
      lambda number, _: number < hparams.num_augmentations,
      lambda number, total: (
        number + 1,
        total
        + predict(
          teacher,
          augment(x, randomness.fold(seed, number), hparams),
        ),
      ),
      (tf.constant(0), tf.zeros([tf.shape(x)[0], model.num_classes])),
      shape_invariants=(
        tf.TensorShape([]),
        tf.TensorShape([None, model.num_classes]),
      ),
      parallel_iterations=1,
    )
    return total / hparams.num_augmentations

  confidence = tf.reduce_max(tf.nn.softmax(predict(source, x)), axis=1)
  return tf.cond(
    tf.reduce_mean(confidence) < hparams.confidence_threshold, averaged, plain
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of CoTTA; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  a `ClientState`; nothing is shared.

  Raises:
    ValueError: If there are no augmentations of the model's inputs.
  """
  if hparams.num_augmentations and not model.input_dtype.is_floating:
    augmentations.check_images("cotta without --num_augmentations=0", model)

  def initial_client_state(seed, nothing):
    del nothing
    source = model.initial_weights(seed)
    return ClientState(
      source,
      source,
      local_training.initial_moments(source, hparams.training),
    )

  def train_client(nothing, state, data, round_num):
    del nothing
    source = model.initial_weights(data.seed)
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)

    def take_step(step, state, loss_sum):
      step_seed = randomness.fold(seed, step)
      logits = teach(
        model,
        hparams,
        source,
        state.teacher,
        data.stream_x,
        randomness.fold(step_seed, 0),
      )
      targets = tf.stop_gradient(tf.nn.softmax(logits))

      def loss_fn(student, _, carry):
        with stream_steps.normalizing(model, hparams):
          predicted = model.predict(student, data.stream_x)
        return consistency(predicted, targets), carry

      trained = local_training.train(
        loss_fn,
        state.student,
        1,
        hparams.training,
        seed=None,
        moments=state.moments,
      )
      teacher = tf.nest.map_structure(
        lambda old, new: old + (1.0 - hparams.teacher_memory) * (new - old),
        state.teacher,
        trained.weights,
      )
      student = restore(
        trained.weights,
        source,
        hparams.restore_probability,
        randomness.fold(step_seed, 1),
      )
      new_state = ClientState(student, teacher, trained.moments)
      return step + 1, new_state, loss_sum + trained.loss

    num_steps = stream_steps.num_steps(hparams, data)
    _, state, loss_sum = tf.while_loop(
      lambda step, *_: step < num_steps,
      take_step,
      (tf.constant(0), state, tf.constant(0.0)),
      parallel_iterations=1,
    )
    return algorithm.ClientResult(
      update=(),
      client_state=state,
      loss=loss_sum / tf.cast(tf.maximum(num_steps, 1), tf.float32),
    )

  def predict_as_client(nothing, state, data, examples):
    del nothing
    source = model.initial_weights(data.seed)
    seed = randomness.fold(data.seed, randomness.Purpose.TEST_TIME)
    # The source's confidence, too, is that of the batch.
    return evaluation.predict_as_one(
      lambda x: teach(model, hparams, source, state.teacher, x, seed),
      examples,
      model.num_classes,
    )

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: (),
    initial_client_state=initial_client_state,
    train_client=train_client,
    predict_as_client=predict_as_client,
    predicts_batches=True,
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
