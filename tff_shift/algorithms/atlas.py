"""ATLAS: learners with many learning rates, weighted by their performance.

Adapting to Online Label Shift with Provable Guarantees (Bai, Zhang, Zhao,
Sugiyama, Zhou; NeurIPS 2022, arXiv:2207.02121), Algorithm 2; a localised
baseline of Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under
Distribution Shift (Park, Joe, Kim, Im, Kwon; 2026), Table 1.

A client runs online gradient descent on the unsupervised risk (eq. 4 of
Fed-ADE) once for each rate of a geometric grid. A learner's weight decreases
exponentially with its cumulative risk, and the model is the weighted mean of
the learners. ATLAS is designed for convex risks: here the learners are heads on
the fixed pre-trained backbone.

What leaves a client: the mean risk of its learners. The learners stay.

Choices:
  * 6 rates from 5e-6, each twice the previous one; weights exp(-0.1 cumulative
    risk) (`smallest_rate`, `num_learners`, `meta_rate`).
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
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
  no_aggregation="the learners stay with the client"
)


@dataclasses.dataclass(frozen=True)
class HParams(adaptation.LabelShiftHParams, hyperparameters.LocalWorkHParams):
  """Hyper-parameters of ATLAS."""

  local_epochs: int = hyperparameters.hparam(
    4,
    "Epochs of each learner over the client's labelled examples per time step,"
    " rounded up to whole batches; 0: use local_steps.",
    minimum=0,
    published=True,
  )
  smallest_rate: float = hyperparameters.hparam(
    5e-6,
    "Learning rate of the first learner; each further learner has twice the"
    " rate of the previous one.",
    minimum=0,
    exclusive_minimum=True,
  )
  num_learners: int = hyperparameters.hparam(
    6, "The number of learners.", minimum=1, maximum=64
  )
  meta_rate: float = hyperparameters.hparam(
    0.1,
    "How fast a learner's weight decreases with its risk; in theory of the"
    " order of sqrt(log(num_learners) / number of time steps).",
    minimum=0,
  )


class Ensemble(NamedTuple):
  """A client's learners.

  Attributes:
    heads: The weights of the heads, each with a first axis of num_learners.
    cumulative_risk: [num_learners] float32.
  """

  heads: Any
  cumulative_risk: Any


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of ATLAS; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  its `Ensemble`; nothing is shared.
  """
  rates = [hparams.smallest_rate * 2**i for i in range(hparams.num_learners)]

  def learner(heads, i):
    return tf.nest.map_structure(lambda stacked: stacked[i], heads)

  def initial_client_state(seed, weights):
    del weights
    head = model.initial_weights(seed).head
    return Ensemble(
      tf.nest.map_structure(lambda w: tf.stack([w] * len(rates)), head),
      tf.zeros([len(rates)]),
    )

  def combine(ensemble):
    """Returns the mean of the heads with exponential weights."""
    mixture = tf.nn.softmax(-hparams.meta_rate * ensemble.cumulative_risk)
    return tf.nest.map_structure(
      lambda stacked: tf.tensordot(mixture, stacked, 1),
      ensemble.heads,
    )

  def train_client(nothing, ensemble, data, round_num):
    del nothing
    pretrained = model.initial_weights(data.seed)
    classes = adaptation.estimate_classes(
      model,
      hparams,
      split_model.SplitWeights(pretrained.backbone, combine(ensemble)),
      data,
    )
    class_weights = adaptation.class_weights(classes, data.y)
    embedded = data.labelled._replace(
      x=adaptation.embed(model, pretrained.backbone, data.x)
    )

    def risk(head, examples):
      logits = model.classify(head, examples.x)
      return adaptation.risk(logits, examples.y, class_weights)

    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
    num_steps = local_training.num_local_steps(hparams, embedded, round_num)

    # All learners use the same batches.
    batches = local_training.pooled_batches(
      embedded, num_steps, hparams.batch_size, seed
    )

    def loss_fn(current, step, carry):
      return risk(current, batches(step)), carry

    heads = [learner(ensemble.heads, i) for i in range(len(rates))]
    trained = [
      local_training.train(
        loss_fn,
        head,
        num_steps,
        hparams,
        seed=seed,
        learning_rate=tf.constant(rate),
      )
      for head, rate in zip(heads, rates, strict=True)
    ]
    return algorithm.ClientResult(
      update=(),
      client_state=Ensemble(
        tf.nest.map_structure(
          lambda *each: tf.stack(each), *[t.weights for t in trained]
        ),
        # A learner is weighted by its risk before this step.
        ensemble.cumulative_risk
        + tf.stack([risk(head, embedded) for head in heads]),
      ),
      loss=tf.reduce_mean(tf.stack([t.loss for t in trained])),
    )

  def predict_as_client(nothing, ensemble, data, examples):
    del nothing
    weights = split_model.SplitWeights(
      model.initial_weights(data.seed).backbone, combine(ensemble)
    )
    return evaluation.predict(model, weights, examples.x)

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: (),
    initial_client_state=initial_client_state,
    train_client=train_client,
    predict_as_client=predict_as_client,
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
