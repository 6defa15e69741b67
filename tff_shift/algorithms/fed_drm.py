"""FedDRM: a shared guide chooses the best client for a query.

Beyond Aggregation: Guiding Clients in Heterogeneous Federated Learning (Wang,
Zhang, Zhang, Liu, Zhang; ICLR 2026, arXiv:2509.23049), Sections 2.3 and 2.4,
Algorithm 1; every client has the personal head of Remark 2.3.

One backbone g serves two tasks: the target class, through a personal head
(alpha_i, beta_i), and the client of origin, through a shared client branch h
with its linear layer (tau, gamma, xi). A client minimises

    lambda * CE(class) + (1 - lambda) * CE(client of origin)      (Section 2.4)

over both together; the server averages backbone and client branch with weights
n_i / N. Without the weights lambda this is the profile log empirical likelihood
of a density ratio model (Theorem 2.2, eq. 7).

What leaves a client: the update of backbone and client branch, its number of
examples and the mean training loss. The target head stays.

Choices:
  * lambda weights the loss of the target class, as in Algorithm 1 (0.9 in the
    authors' program, commit 3479abf, which is followed where the paper is
    silent).
  * The paper routes a query to the highest probability; the program subtracts
    log(n_i / N) first. The correction is by the weights of the mean in training
    (none with `client_weighting=uniform`). Both are reported (`uncorrected_`
    metrics; `guide(..., corrected=False)`).
  * All clients start with the initial head of the run's seed, see
    `learning.algorithm`.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.data import client_dataset
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import factories
from tff_shift.models import guided_model
from tff_shift.models import split_model

SCENARIOS = ("guidance",)

RUNNING_STATISTICS = algorithm.ONE_MODEL

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_clipping="its guide learns the clients' fractions n_i / N from the mean"
  " (Theorem 2.2), which clipping and zeroing change",
  plaintext_sums="to guide, the server receives each client's number of"
  " examples",
)


@dataclasses.dataclass(frozen=True)
class HParams(hyperparameters.LocalHParams):
  """Hyper-parameters of FedDRM."""

  lambda_: float = hyperparameters.hparam(
    0.9,
    "Weight of the loss of the target class; the rest is the weight of the"
    " client of origin. 1: the guide learns nothing; 0: only the guide learns;"
    " the paper asks for more than 0.5.",
    minimum=0,
    maximum=1,
  )
  client_weighting: str = hyperparameters.hparam(
    "num_examples",
    "A client's weight in the server's mean: num_examples, as in Algorithm 1"
    " of the FedDRM paper, or uniform.",
    choices=("uniform", "num_examples"),
    published=True,
  )


class Shared(NamedTuple):
  """The shared weights.

  Attributes:
    backbone: The weights of g, a tuple of float32 tensors.
    client_branch: The weights of h and of its linear layer, a tuple of float32
      tensors.
  """

  backbone: Any
  client_branch: Any


class Weights(NamedTuple):
  """The weights that a client trains: the shared ones, and its head."""

  shared: Shared
  head: Any


def reweighted_loss(
  model: guided_model.GuidedModel,
  lambda_: float,
  weights: Weights,
  batch: local_training.Batch,
  client_id,
) -> tf.Tensor:
  """Computes the reweighted loss of Section 2.4 on a batch of one client.

  Args:
    model: The model.
    lambda_: The weight of the loss of the target class.
    weights: The shared weights, and the client's head.
    batch: The batch.
    client_id: The client, an int32 scalar.

  Returns:
    The loss, a float32 scalar.
  """
  class_logits, client_logits = model.predict_both(
    split_model.SplitWeights(weights.shared.backbone, weights.head),
    weights.shared.client_branch,
    batch.x,
  )
  origin = tf.fill(tf.shape(batch.y), client_id)
  return lambda_ * local_training.cross_entropy(class_logits, batch.y) + (
    1.0 - lambda_
  ) * local_training.cross_entropy(client_logits, origin)


def train_client(
  model: guided_model.GuidedModel,
  hparams: HParams,
  shared: Shared,
  head,
  data: client_dataset.ClientDataset,
  round_num,
) -> algorithm.ClientResult:
  """Trains one client, Algorithm 1, lines 6 to 15.

  Args:
    model: The model.
    hparams: Hyper-parameters.
    shared: The server's weights.
    head: The client's head.
    data: The client's data.
    round_num: The round, an int32 scalar.

  Returns:
    The update of the shared weights, and the client's new head.
  """
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
  # One step per domain, as in FedAvg: in this scenario there is one domain.
  num_steps = local_training.num_local_steps(
    hparams, data, round_num
  ) * local_training.num_domains(data)
  result = local_training.train_on_batches(
    lambda weights, batch: reweighted_loss(
      model, hparams.lambda_, weights, batch, data.client_id
    ),
    Weights(shared, head),
    data,
    num_steps,
    seed,
    hparams,
    round_num=round_num,
  )
  return algorithm.ClientResult(
    update=tf.nest.map_structure(tf.subtract, result.weights.shared, shared),
    client_state=result.weights.head,
    loss=result.loss,
  )


def build(
  model: guided_model.GuidedModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedDRM; see `algorithm.AlgorithmSpec`.

  A client's state is its head. The server has no model to predict with, but it
  can guide queries. A `client_id` must be below the model's number of clients.

  Raises:
    ValueError: If the model has no guide.
  """
  guided_model.require(model, "fed_drm")

  def guide_queries(shared, x):
    logits = evaluation.predict_in_batches(
      lambda batch: model.predict_client(
        shared.backbone, shared.client_branch, batch
      ),
      x,
      model.num_clients,
    )
    return tf.ensure_shape(logits, [x.shape[0], model.num_clients])

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: Shared(
      model.initial_backbone(seed), model.initial_client_branch(seed)
    ),
    initial_client_state=lambda seed, weights: model.initial_head(seed),
    starts_alike=True,
    train_client=local_training.allows_padding(
      lambda shared, head, data, round_num: train_client(
        model, hparams, shared, head, data, round_num
      )
    ),
    predict_as_client=local_training.allows_padding(
      lambda shared, head, _, examples: evaluation.predict(
        model, split_model.SplitWeights(shared.backbone, head), examples.x
      )
    ),
    guide_queries=guide_queries,
    max_clients=model.num_clients,
  )
