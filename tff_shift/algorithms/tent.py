"""Tent: a model becomes more certain of its stream, by scales and shifts only.

Tent: Fully Test-Time Adaptation by Entropy Minimization (Wang, Shelhamer, Liu,
Olshausen, Darrell; ICLR 2021, openreview:uXl3bZLkr3c). `rule=eata`: Efficient
Test-Time Model Adaptation without Forgetting (Niu, Wu, Zhang, Chen, Zheng,
Zhao, Tan; ICML 2022, arXiv:2204.02610). `rule=sar`: Towards Stable Test-time
Adaptation in Dynamic Wild World (Niu, Wu, Zhang, Wen, Chen, Zhao, Tan; ICLR
2023, openreview:g2YraF75Tj).

A client adapts the scales and shifts w of all normalisations to the batch of a
time step, and keeps them. Other weights do not change. H_i is the entropy of
the prediction for example i, C the number of classes.

  * tent: a step on the mean of H_i.
  * eata: a step on the mean over chosen examples of exp(E_0 - H_i) H_i, without
    a gradient through the factor, plus beta sum_k F_k (w_k - w_k^0)^2. Chosen
    are certain examples, H_i < E_0, whose probabilities differ from those of
    earlier ones: |cos(m, p_i)| < epsilon, where m is the moving mean of chosen
    probabilities (9/10 old). F is the Fisher information of the pre-trained
    model, w^0 its scales and shifts. beta = 0 is ETA.
  * sar: a step on the mean of H_i over examples with H_i < E_0, with the
    gradient at w + rho g / |g|, where g is the gradient at w. There examples
    with H_i >= E_0 are left out again. If the moving mean of the loss there
    (9/10 old) is below a threshold, the model has collapsed, and w is reset.

What leaves a client: the mean entropy of its batch. Scales, shifts and the
optimizer's moments stay. `fed_tent` shares scales and shifts.

Published reading: a batch is predicted before the step on it (scored=before).
With batch normalisation it is normalised by its own moments, in the step and in
the prediction, and predicted as one.

Published settings: tent on CIFAR-10-C adam, 1e-3, batches of 200 examples, on
ImageNet sgd, 2.5e-4, momentum 0.9, batches of 64; eata on CIFAR-10 epsilon 0.4
and beta 1, on ImageNet 0.05 and 2000; sar the optimizer of tent on ImageNet,
without the last stage of a ResNet (`excluded_layers`).

Choices:
  * Scales and shifts are the weights `gamma` and `beta` of Keras's layers. With
    group or layer normalisation nothing is estimated from a batch, and the step
    is all that is left of the method.
  * A time step is a batch, of any size. The optimizer's moments are kept from
    batch to batch, as in the authors' program.
  * Dropout is off in steps, and regularizers do not count.
  * The mean of eata is over the chosen examples, as in the program; the paper's
    sum has an indicator. Without any, no step is taken, and sar takes none.
  * F is the mean of squared gradients of batches of 64 of the client's labelled
    examples with the classes that the model predicts; labels are not used.
  * The threshold of sar is 0.2, for the 1,000 classes of ImageNet. Here it is
    0.2 ln C / ln 1000: 0.2 itself resets a good model of ten classes again and
    again. After a reset the moving mean starts anew, and so do the moments.
  * The episodic variant, which resets w at each batch, is `--reset_control`
    with scored=after.
  * The authors' program refuses group normalisation; SAR's adapts its scales
    and shifts. `adapted=all` adapts all weights, `reset_entropy` sets the
    threshold of sar. SAR's program restores the mean loss after a reset, and
    resets again.
"""

import dataclasses
import math
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import fisher_information
from tff_shift.algorithms.parts import sharpness
from tff_shift.algorithms.parts import stream_steps
from tff_shift.algorithms.parts import test_time_adaptation
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import weight_masks
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_aggregation="adapted scales and shifts stay with the client"
)

# The weights of Keras's normalisations.
_NORMALIZERS = ("gamma", "beta")
# The old value's fraction of a moving mean, in eata and sar.
_KEPT = 0.9
_FISHER_BATCH = 64
# The number of classes for which the threshold of sar was published.
_PUBLISHED_CLASSES = 1000
# The moving mean of sar before the first loss; entropies are not negative.
_NONE_YET = -1.0


@dataclasses.dataclass(frozen=True)
class HParams(stream_steps.StreamHParams):
  """Hyper-parameters of Tent, EATA and SAR."""

  rule: str = hyperparameters.hparam(
    "tent",
    "The loss of a step: tent, the mean entropy; eata, the weighted entropy of"
    " certain and new examples, with an anchor; sar, the entropy of certain"
    " examples at the worst nearby weights, with resets.",
    choices=("tent", "eata", "sar"),
  )
  adapted: str = hyperparameters.hparam(
    "norm",
    "The weights that adapt: norm, scales and shifts of normalisations; all.",
    choices=("norm", "all"),
  )
  optimizer: str = hyperparameters.hparam(
    "adam",
    "Optimizer of these steps; its moments are kept between batches.",
    choices=("sgd", "adam"),
    published=True,
  )
  entropy_margin: float = hyperparameters.hparam(
    0.4,
    "For eata and sar: E_0 / ln C; examples of larger entropy are left out. 1:"
    " none are.",
    minimum=0,
  )
  similarity_margin: float = hyperparameters.hparam(
    0.4,
    "For eata: epsilon; examples whose probabilities have at least this cosine"
    " with the moving mean are left out. Above 1: none are.",
    minimum=0,
  )
  fisher_weight: float = hyperparameters.hparam(
    1.0, "For eata: beta, the weight of the anchor; 0: ETA.", minimum=0
  )
  rho: float = hyperparameters.hparam(
    0.05,
    "For sar: the distance from the weights at which a step's gradient is"
    " taken; 0: at the weights.",
    minimum=0,
  )
  reset_entropy: float = hyperparameters.hparam(
    0.2,
    "For sar: the moving mean of the loss below which the model is reset, for"
    " 1,000 classes; for C classes it is multiplied by ln C / ln 1000. 0:"
    " never.",
    minimum=0,
  )
  excluded_layers: int = hyperparameters.hparam(
    0,
    "The number of layers, counted from the output, that do not adapt.",
    minimum=0,
  )

  def check_together(self) -> None:
    """Refuses hyper-parameters that the chosen rule or optimizer ignores."""
    super().check_together()
    hyperparameters.refuse_ignored(self, "momentum", "optimizer", "sgd")
    hyperparameters.refuse_ignored(
      self, "entropy_margin", "rule", "eata", "sar"
    )
    for field in ("similarity_margin", "fisher_weight"):
      hyperparameters.refuse_ignored(self, field, "rule", "eata")
    for field in ("rho", "reset_entropy"):
      hyperparameters.refuse_ignored(self, field, "rule", "sar")


class EataState(NamedTuple):
  """What EATA remembers.

  Attributes:
    probabilities: m, [num_classes] float32; zeros before the first batch with
      chosen examples.
    fisher: F, in the structure of the adapted weights; () for ETA.
    num_batches: The number of batches so far, an int32 scalar.
  """

  probabilities: Any
  fisher: Any
  num_batches: Any


class SarState(NamedTuple):
  """What SAR remembers.

  Attributes:
    loss: The moving mean of the second loss, a float32 scalar; -1 before the
      first.
  """

  loss: Any


class Memory(NamedTuple):
  """What a client keeps from batch to batch, besides adapted weights.

  Attributes:
    moments: The moments of the optimizer.
    rule: An `EataState`, a `SarState`, or () for Tent.
  """

  moments: Any
  rule: Any


class Tent(NamedTuple):
  """The functions of the method, for weights that a client or server keeps.

  Attributes:
    initial_weights: `(seed) -> weights`, a tuple of those that adapt.
    initial_memory: `(seed) -> Memory`.
    adapt: `(weights, memory, data) -> (weights, memory, loss)`, from the batch
      of a time step.
    predict: `(weights, data, examples) -> logits`.
    predicts_batches: See `algorithm.AlgorithmSpec`.
  """

  initial_weights: Any
  initial_memory: Any
  adapt: Any
  predict: Any
  predicts_batches: bool


def adapted_weights(
  model: split_model.SplitModel, hparams: HParams
) -> split_model.SplitWeights:
  """Returns which weights adapt, bools.

  Raises:
    ValueError: If none do; one line.
  """
  names = tf.nest.flatten(model.weight_names())
  excluded = [False] * len(names)
  if hparams.excluded_layers:
    excluded = tf.nest.flatten(model.last_layers(hparams.excluded_layers))
  found = [
    (hparams.adapted == "all" or name.rpartition("/")[2] in _NORMALIZERS)
    and not is_excluded
    for name, is_excluded in zip(names, excluded, strict=True)
  ]
  if not any(found):
    where = (
      f"excluded_layers={hparams.excluded_layers} leaves"
      if hparams.excluded_layers
      else f"adapted={hparams.adapted} finds"
    )
    raise ValueError(
      f"{where} no scales and shifts (gamma, beta) of normalisations to adapt"
      f" in model {model.name!r}; take adapted=all, or a model with"
      " normalisation"
    )
  return tf.nest.pack_sequence_as(model.weight_names(), found)


def weighted_mean(values, weights) -> tf.Tensor:
  """Returns the mean of values over examples of weight above 0; 0 of none.

  Args:
    values: [n] float32.
    weights: [n] float32; the mean is of their products with the values.
  """
  number = tf.reduce_sum(tf.cast(weights > 0, tf.float32))
  return tf.math.divide_no_nan(tf.reduce_sum(values * weights), number)


def choose_certain_and_new(
  log_probabilities, mean, margin: float, similarity_margin: float
) -> tuple[tf.Tensor, tf.Tensor]:
  """Chooses and weighs the examples of EATA.

  Args:
    log_probabilities: log p_i, [n, num_classes] float32.
    mean: m, [num_classes] float32; zeros: all examples are new.
    margin: E_0.
    similarity_margin: epsilon.

  Returns:
    The weights exp(E_0 - H_i) of chosen examples, 0 of others, [n] float32, and
    the moving mean after the batch.
  """
  entropies = test_time_adaptation.entropy(log_probabilities)
  probabilities = tf.exp(log_probabilities)
  is_first = tf.reduce_all(tf.equal(mean, 0.0))
  cosines = tf.linalg.matvec(
    tf.math.l2_normalize(probabilities, axis=1), tf.math.l2_normalize(mean)
  )
  chosen = (entropies < margin) & (
    is_first | (tf.abs(cosines) < similarity_margin)
  )
  number = tf.reduce_sum(tf.cast(chosen, tf.float32))
  own = tf.math.divide_no_nan(
    tf.reduce_sum(tf.where(chosen[:, tf.newaxis], probabilities, 0.0), axis=0),
    number,
  )
  kept = tf.where(is_first, 0.0, _KEPT)
  moved = tf.where(number > 0, kept * mean + (1.0 - kept) * own, mean)
  weights = tf.where(chosen, tf.exp(margin - entropies), 0.0)
  return tf.stop_gradient(weights), tf.stop_gradient(moved)


def move_mean(mean, value, is_there) -> tf.Tensor:
  """Moves the mean loss of SAR towards a new one, if there is one."""
  moved = tf.where(mean < 0, value, _KEPT * mean + (1.0 - _KEPT) * value)
  return tf.where(is_there, moved, mean)


def make(model: split_model.SplitModel, hparams: HParams) -> Tent:
  """Makes the functions of the method.

  Args:
    model: The model; its initial weights are the pre-trained ones.
    hparams: The hyper-parameters.
  """
  chosen = adapted_weights(model, hparams)
  margin = hparams.entropy_margin * math.log(model.num_classes)
  threshold = hparams.reset_entropy * (
    math.log(model.num_classes) / math.log(_PUBLISHED_CLASSES)
  )
  has_anchor = hparams.rule == "eata" and hparams.fisher_weight > 0

  def initial_weights(seed):
    return weight_masks.take(model.initial_weights(seed), chosen)

  def initial_memory(seed):
    weights = initial_weights(seed)
    rule: Any = ()
    if hparams.rule == "eata":
      rule = EataState(
        tf.zeros([model.num_classes]),
        tf.nest.map_structure(tf.zeros_like, weights) if has_anchor else (),
        tf.constant(0),
      )
    if hparams.rule == "sar":
      rule = SarState(tf.constant(_NONE_YET))
    return Memory(
      local_training.initial_moments(weights, hparams.training), rule
    )

  def log_probabilities(pretrained, weights, x):
    whole = weight_masks.put(pretrained, chosen, weights)
    with stream_steps.normalizing(model, hparams):
      return tf.nn.log_softmax(model.predict(whole, x))

  def descend_tent(pretrained, weights, memory, x, train):
    def loss_fn(current, step, carry):
      entropies = test_time_adaptation.entropy(
        log_probabilities(pretrained, current, x)
      )
      return tf.reduce_mean(entropies), carry

    result = train(loss_fn, weights)
    return result.weights, Memory(result.moments, ()), result.loss

  def descend_eata(pretrained, weights, memory, x, train):
    start = weight_masks.take(pretrained, chosen)

    def loss_fn(current, step, carry):
      outputs = log_probabilities(pretrained, current, x)
      factors, mean = choose_certain_and_new(
        outputs, carry[0], margin, hparams.similarity_margin
      )
      loss = weighted_mean(test_time_adaptation.entropy(outputs), factors)
      if has_anchor:
        loss += hparams.fisher_weight * tf.add_n(
          [
            tf.reduce_sum(f * tf.math.squared_difference(w, w0))
            for f, w, w0 in zip(memory.rule.fisher, current, start, strict=True)
          ]
        )
      return loss, (mean, tf.reduce_any(factors > 0))

    def differentiate(gradient_at, trained):
      found = gradient_at(trained)
      return found._replace(takes_step=found.carry[1])

    result = train(
      loss_fn,
      weights,
      carry=(memory.rule.probabilities, False),
      differentiate=differentiate,
    )
    rule = memory.rule._replace(
      probabilities=result.carry[0], num_batches=memory.rule.num_batches + 1
    )
    return result.weights, Memory(result.moments, rule), result.loss

  def descend_sar(pretrained, weights, memory, x, train):
    first = []

    def loss_fn(current, step, carry):
      entropies = test_time_adaptation.entropy(
        log_probabilities(pretrained, current, x)
      )
      is_certain = entropies < margin
      if first:
        is_certain &= first[0]
      else:
        first.append(is_certain)
      loss = weighted_mean(entropies, tf.cast(is_certain, tf.float32))
      is_there = tf.reduce_any(is_certain)
      return loss, (move_mean(carry[0], loss, is_there), is_there)

    def differentiate(gradient_at, trained):
      first.clear()
      found = sharpness.sharpness_aware(hparams.rho)(gradient_at, trained)
      return found._replace(takes_step=found.carry[1])

    result = train(
      loss_fn,
      weights,
      carry=(memory.rule.loss, False),
      differentiate=differentiate,
    )
    mean = result.carry[0]
    has_collapsed = (mean >= 0) & (mean < threshold)
    start = weight_masks.take(pretrained, chosen)
    new_weights, moments, mean = tf.nest.map_structure(
      lambda fresh, now: tf.where(has_collapsed, fresh, now),
      (
        start,
        local_training.initial_moments(start, hparams.training),
        _NONE_YET,
      ),
      (result.weights, result.moments, mean),
    )
    return new_weights, Memory(moments, SarState(mean)), result.loss

  descend = {
    "tent": descend_tent,
    "eata": descend_eata,
    "sar": descend_sar,
  }[hparams.rule]

  def measure_fisher(pretrained, memory, data):
    """Returns the memory with F, measured before the first batch."""
    if not has_anchor:
      return memory

    def measure():
      return fisher_information.of_own_labels(
        lambda weights, x: log_probabilities(pretrained, weights, x),
        weight_masks.take(pretrained, chosen),
        data.x,
        _FISHER_BATCH,
      )

    fisher = tf.cond(
      tf.equal(memory.rule.num_batches, 0), measure, lambda: memory.rule.fisher
    )
    return memory._replace(rule=memory.rule._replace(fisher=fisher))

  def adapt(weights, memory, data):
    pretrained = model.initial_weights(data.seed)

    def train(loss_fn, weights, **options):
      return local_training.train(
        loss_fn,
        weights,
        stream_steps.num_steps(hparams, data),
        hparams.training,
        # The seed of dropout, which is off.
        seed=None,
        moments=memory.moments,
        **options,
      )

    memory = measure_fisher(pretrained, memory, data)
    return descend(pretrained, weights, memory, data.stream_x, train)

  def predict(weights, data, examples: client_dataset.ClientDataset):
    whole = weight_masks.put(model.initial_weights(data.seed), chosen, weights)
    return stream_steps.predict(model, hparams, whole, examples)

  return Tent(
    initial_weights,
    initial_memory,
    adapt,
    predict,
    stream_steps.normalizes_by_batch(model, hparams),
  )


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    weights: The weights that adapt, a tuple.
    memory: The rest of what it keeps, a `Memory`.
  """

  weights: Any
  memory: Memory


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of Tent; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  its `ClientState`; nothing is shared.
  """
  tent = make(model, hparams)

  def train_client(nothing, state, data, round_num):
    del nothing, round_num
    weights, memory, loss = tent.adapt(state.weights, state.memory, data)
    return algorithm.ClientResult(
      update=(), client_state=ClientState(weights, memory), loss=loss
    )

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: (),
    initial_client_state=lambda seed, weights: ClientState(
      tent.initial_weights(seed), tent.initial_memory(seed)
    ),
    train_client=train_client,
    predict_as_client=lambda nothing, state, data, examples: tent.predict(
      state.weights, data, examples
    ),
    predicts_batches=tent.predicts_batches,
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
