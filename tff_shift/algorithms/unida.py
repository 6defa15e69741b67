"""UNIDA: UDA with weights for examples that both domains may have.

Universal Domain Adaptation (You, Long, Cao, Wang, Jordan; CVPR 2019,
https://openaccess.thecvf.com/content_CVPR_2019/html/You_Universal_Domain_Adaptation_CVPR_2019_paper.html),
its Universal Adaptation Network; a localised baseline of Fed-ADE: Adaptive
Learning Rate for Federated Post-adaptation under Distribution Shift (Park, Joe,
Kim, Im, Kwon; 2026), Table 1, which gives only its name and this reference.

With f the backbone, g the head, d and d' two domain classifiers on f, the
client's labelled source (x_s, y_s) and the target x_t of its stream, a client
minimises

    CE(g(f(x_s)), y_s) + L_w + L',

    L_w = mean w_s BCE(d(f(x_s)), 1) + mean w_t BCE(d(f(x_t)), 0),
    L'  = BCE(d'(f(x_s)), 1) + BCE(d'(f(x_t)), 0).

The gradient of L_w is reversed in f, as in UDA; the gradient of L' stops before
f, since d' only measures. With H the entropy of the predicted classes, as a
fraction of its maximum,

    w_s(x) = H(x) - d'(x),   w_t(x) = d'(x) - H(x),

shifted and scaled over the batch to [0, 1], and then to a mean of 1.

What leaves a client: the mean loss. Model and domain classifiers stay.

Equations and numbers are those of the authors' program
(github.com/thuml/Universal-Domain-Adaptation).

Choices:
  * In Fed-ADE the classes before and after are the same, so the largest logit
    is the prediction. With `unknown_threshold` (-0.5 for w_t in the program) an
    unknown example has NaN logits: it is wrong and counted in `not_finite`, and
    the loss is then NaN.
  * Weights that are all equal in a batch are 1; the program divides by zero.
  * Domain classifiers, batches and rates: see `domain_adversaries`.
"""

import dataclasses
import math

import tensorflow as tf

from tff_shift.algorithms.parts import domain_adversaries
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_aggregation="each client adapts its own model"
)


@dataclasses.dataclass(frozen=True)
class HParams(domain_adversaries.AdversarialHParams):
  """Hyper-parameters of UNIDA."""

  source_temperature: float = hyperparameters.hparam(
    10.0,
    "Temperature of the logits for the entropy H of a source example.",
    minimum=0,
    exclusive_minimum=True,
  )
  target_temperature: float = hyperparameters.hparam(
    1.0,
    "Temperature of the logits for the entropy H of a stream example, also in"
    " predictions.",
    minimum=0,
    exclusive_minimum=True,
  )
  unknown_threshold: float = hyperparameters.hparam(
    -1.0,
    "Examples with w_t below this are predicted to be of no class, which is"
    " wrong; -1: none. The authors use -0.5.",
    minimum=-1,
    maximum=1,
  )


def transferability(logits, separate_logits, temperature: float) -> tf.Tensor:
  """Computes w_t(x) = d'(x) - H(x), and so -w_s(x).

  Args:
    logits: The class logits, [batch, num_classes] float32.
    separate_logits: The logits of d', [batch] float32.
    temperature: Divides the class logits.

  Returns:
    [batch] float32, from -1 to 1.
  """
  log_shares = tf.nn.log_softmax(logits / temperature)
  entropy = -tf.reduce_sum(tf.exp(log_shares) * log_shares, axis=1)
  largest = math.log(int(logits.shape[1]))
  return tf.sigmoid(separate_logits) - entropy / largest


def normalize(weights) -> tf.Tensor:
  """Shifts and scales weights to [0, 1], then to a mean of 1.

  Args:
    weights: [batch] float32.

  Returns:
    [batch] float32; ones if all weights are equal.
  """
  lowest, highest = tf.reduce_min(weights), tf.reduce_max(weights)
  scaled = tf.math.divide_no_nan(weights - lowest, highest - lowest)
  return tf.where(
    highest > lowest,
    tf.math.divide_no_nan(scaled, tf.reduce_mean(scaled)),
    tf.ones_like(weights),
  )


def domain_loss(
  hparams: HParams,
  classifiers: tuple[tuple[tf.Tensor, ...], tuple[tf.Tensor, ...]],
  source: domain_adversaries.Seen,
  target: domain_adversaries.Seen,
  strength,
) -> tf.Tensor:
  """Computes L_w + L'.

  Args:
    hparams: The temperatures.
    classifiers: The weights of d and of d'.
    source: The model's outputs for a batch of labelled examples.
    target: The model's outputs for a batch of the stream.
    strength: Lambda, a scalar.

  Returns:
    A float32 scalar, see `domain_adversaries.reversed_loss`.
  """
  adversary, separate = classifiers
  of_source, of_target = (
    tf.stop_gradient(
      transferability(
        seen.logits,
        domain_adversaries.domain_logits(separate, seen.embeddings),
        temperature,
      )
    )
    for seen, temperature in (
      (source, hparams.source_temperature),
      (target, hparams.target_temperature),
    )
  )
  return domain_adversaries.reversed_loss(
    adversary,
    source.embeddings,
    target.embeddings,
    strength,
    normalize(-of_source),
    normalize(of_target),
  ) + domain_adversaries.domain_loss(
    separate,
    tf.stop_gradient(source.embeddings),
    tf.stop_gradient(target.embeddings),
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of UNIDA; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  a `domain_adversaries.ClientState` with d and d'; nothing is shared.
  """

  def predict_known(state, x):
    """Predicts; the logits of unknown examples are NaN."""
    embeddings = model.embed(state.weights.backbone, x)
    logits = model.classify(state.weights.head, embeddings)
    separate_logits = domain_adversaries.domain_logits(
      state.classifiers[1], embeddings
    )
    weights = transferability(
      logits, separate_logits, hparams.target_temperature
    )
    is_known = weights >= hparams.unknown_threshold
    return tf.where(is_known[:, tf.newaxis], logits, math.nan)

  def predict(state, x):
    # Rounding may put w_t below its minimum.
    if hparams.unknown_threshold <= -1.0:
      return evaluation.predict(model, state.weights, x)
    return evaluation.predict_in_batches(
      lambda batch: predict_known(state, batch), x, model.num_classes
    )

  return domain_adversaries.build(
    model,
    hparams,
    hidden_layers=(2, 2),
    loss=lambda *arguments: domain_loss(hparams, *arguments),
    predict=predict,
  )
