"""FedRoD: a generic predictor for all clients, and personal heads on top of it.

On Bridging Generic and Personalized Federated Learning for Image Classification
(Chen, Chao; ICLR 2022, arXiv:2107.00778), Federated Robust Decoupling with a
linear personal head; a baseline in Table 1 of Federated Learning under Evolving
Distribution Shifts.

A client trains the backbone phi and the generic head h with the balanced
softmax, and in the same steps its personal head q_k with the plain
cross-entropy, on features and logits without gradients:

    generic:  CE(h(phi(x)) + gamma log n_c, y)           trains phi and h
    personal: CE(stop(h(phi(x))) + q_k(stop(phi(x))), y)  trains q_k

where n_c is the client's number of examples of class c. A class that the client
lacks has weight n_c = 0 in the balanced softmax: no example of the client
changes its logit in h (`class_counts` for other counts).

The server predicts with h, a client with h + q_k.

What leaves a client: the update of phi and h, and the mean of the sum of both
losses. The personal head stays.

Choices:
  * The personal head starts at zero, so that a new client predicts as the
    server does. It is learned in the steps of the shared model, not after them.
  * The logit of a class that the client lacks is masked by -1e9, which is
    finite and does not reach the loss. The published formula has weight 0 too;
    the program of the FedTHE paper, which has both methods, adds one to all
    counts (`class_counts=add_one`). gamma is `gamma`.
"""

import dataclasses

import tensorflow as tf

from tff_shift.algorithms.parts import balanced_softmax
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
  """Hyper-parameters of FedRoD."""

  gamma: float = balanced_softmax.gamma_hparam()
  class_counts: str = balanced_softmax.class_counts_hparam()


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedRoD; see `algorithm.AlgorithmSpec`.

  The head is the last linear layer, and a client's state is a head of its form.
  """
  model = split_model.with_head(model, "last_layer")

  def train_client(weights, personal_head, data, round_num):
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
    num_steps = local_training.num_local_steps(hparams, data, round_num)
    num_steps *= local_training.num_domains(data)
    shift = balanced_softmax.shift(
      data.y, model.num_classes, hparams.gamma, hparams.class_counts
    )

    def loss(current, batch):
      generic, own_head = current
      embedding = model.embed(generic.backbone, batch.x)
      logits = model.classify(generic.head, embedding)
      own_logits = tf.stop_gradient(logits) + model.classify(
        own_head, tf.stop_gradient(embedding)
      )
      return local_training.cross_entropy(
        logits + shift, batch.y
      ) + local_training.cross_entropy(own_logits, batch.y)

    result = local_training.train_on_batches(
      loss,
      (weights, personal_head),
      data,
      num_steps,
      seed,
      hparams,
      round_num=round_num,
    )
    generic, own_head = result.weights
    return algorithm.ClientResult(
      update=tf.nest.map_structure(tf.subtract, generic, weights),
      client_state=own_head,
      loss=result.loss,
    )

  def predict_as_client(weights, personal_head, _, examples):
    def predict(x):
      embedding = model.embed(weights.backbone, x)
      return model.classify(weights.head, embedding) + model.classify(
        personal_head, embedding
      )

    return evaluation.predict_in_batches(predict, examples.x, model.num_classes)

  return algorithm.AlgorithmSpec(
    initial_weights=model.initial_weights,
    initial_client_state=lambda seed, weights: tf.nest.map_structure(
      tf.zeros_like, weights.head
    ),
    train_client=train_client,
    predict_as_client=predict_as_client,
    predict_as_server=lambda weights, _, examples: evaluation.predict(
      model, weights, examples.x
    ),
  )
