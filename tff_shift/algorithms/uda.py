"""UDA: a backbone whose features hide the domain from a domain classifier.

Unsupervised Domain Adaptation by Backpropagation (Ganin, Lempitsky; ICML 2015,
arXiv:1409.7495); a localised baseline of Fed-ADE: Adaptive Learning Rate for
Federated Post-adaptation under Distribution Shift (Park, Joe, Kim, Im, Kwon;
2026), Table 1, which gives only its name and this reference.

With f the backbone, g the head and d a domain classifier on f, a client
minimises over g and d

    CE(g(f(x_s)), y_s) + L,   L = BCE(d(f(x_s)), 1) + BCE(d(f(x_t)), 0),

and over f the same with -lambda L: its gradient of L is reversed. The source
(x_s, y_s) is the client's labelled data, the target x_t its stream.

What leaves a client: the mean loss. Model and domain classifier stay.

Written from general knowledge of the method, not from its paper.

Choices:
  * Under label shift the objective is wrong: if label distributions differ,
    equal distributions of embeddings imply wrong labels. On digits UDA ends far
    below its initial model with lambda 1, and above it with 0.1.
  * Domain classifier, batches and rates: see `domain_adversaries`.
"""

import dataclasses

from tff_shift.algorithms.parts import domain_adversaries
from tff_shift.learning import algorithm
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_aggregation="each client adapts its own model"
)


@dataclasses.dataclass(frozen=True)
class HParams(domain_adversaries.AdversarialHParams):
  """Hyper-parameters of UDA: those of the domain classifier."""


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of UDA; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  a `domain_adversaries.ClientState` with one classifier; nothing is shared.
  """

  def loss(classifiers, source, target, strength):
    (classifier,) = classifiers
    return domain_adversaries.reversed_loss(
      classifier, source.embeddings, target.embeddings, strength
    )

  return domain_adversaries.build(model, hparams, hidden_layers=(1,), loss=loss)
