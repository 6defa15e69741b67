"""FedPOE: own model, federated model and its snapshots predict together.

Personalized Federated Learning with Mixture of Models for Adaptive Prediction
and Model Fine-Tuning (Ghari, Shen; NeurIPS 2024), Fed-POE; a baseline of
Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under Distribution
Shift (Park, Joe, Kim, Im, Kwon; 2026), Table 1.

A client predicts with its own model L, the federated model F and snapshots S_j
of F (S_0 is the pre-trained model), as probabilities:

    tuned = (a L(x) + b F(x)) / (a + b)
    stored = sum_j v_j S_j(x) / sum_j v_j, over those that were drawn
    p = (c tuned + d stored) / (c + d)

M draws with replacement, S_j with probability p_j = v_j / sum v, say which are
used. All weights start at 1. In a round the client first scores them on what it
learns from: a, b, c, d fall by exp(-meta_rate loss) of L, F, tuned, stored, and
v_j of those drawn by exp(-meta_rate loss_j / (1 - (1 - p_j)^M)), which in the
mean over draws is the loss. A new snapshot starts at exp(-meta_rate times the
losses of F so far). Then L and a copy of F are trained alike; the server takes
the mean of the copies, and keeps it as a snapshot every `snapshot_period`
rounds.

What leaves a client: the change of what is trained of F, and the mean loss of
training. L, all weights and what was drawn do not.

Equations and numbers are those of the authors' program
(github.com/pouyamghari/Fed-POE) but for two things, in which the text is
followed: snapshots are of F (the program mixes the client's own model again),
and clients train copies of F side by side (the program's train one object, one
after the other). Decisions:
  * Labels. The method has those of each example after it has predicted it; a
    stream has none: `stream_labels`. Fed-ADE does not say.
  * A round is one of the method's steps, with `local_epochs` over what the
    client learns from in place of one step on the last ten examples.
  * Only the last layer is trained, as in the program; Fed-ADE does not say
    which (`trained`).
  * meta_rate is 1 / sqrt(T) in the program and learning_rate 0.01 / sqrt(T),
    for T steps; the defaults are for 100.
  * The server has room for `max_snapshots`; what comes later is not kept.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import adaptation
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import process
from tff_shift.learning import randomness
from tff_shift.learning import snapshot_ensembles
from tff_shift.learning import stream_labels
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)


@dataclasses.dataclass(frozen=True)
class HParams(
  snapshot_ensembles.EnsembleHParams,
  stream_labels.StreamLabelsHParams,
  hyperparameters.LocalHParams,
):
  """Hyper-parameters of FedPOE."""

  local_epochs: int = hyperparameters.hparam(
    1,
    "Passes of a round over what the client learns from, rounded up to whole"
    " batches; 0: local_steps counts.",
    minimum=0,
  )
  learning_rate: float = hyperparameters.hparam(
    1e-3, "The clients' learning rate.", minimum=0, exclusive_minimum=True
  )
  trained: str = hyperparameters.hparam(
    "last_layer",
    "What is trained, and of what there are snapshots: last_layer, the last"
    " linear layer, on a backbone that stays pre-trained; all, all weights.",
    choices=("last_layer", "all"),
  )


class Weights(NamedTuple):
  """What the server holds.

  Attributes:
    federated: The weights of F that are trained.
    snapshots: Those of the snapshots, each with a first axis of max_snapshots;
      the pre-trained ones where there is no snapshot yet.
  """

  federated: Any
  snapshots: Any


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    own: The weights of L that are trained.
    ensemble: A `snapshot_ensembles.Ensemble`.
  """

  own: Any
  ensemble: Any


def work(model: split_model.SplitModel, hparams: HParams) -> process.Work:
  """The functions of FedPOE; see `process.Work`.

  The initial weights of the model are the pre-trained ones. A client's state is
  a `ClientState`; a round has one phase.
  """
  if hparams.trained == "all":
    first, predict = model.initial_weights, model.predict
  else:
    model = split_model.with_head(model, "last_layer")
    first = lambda seed: model.initial_weights(seed).head  # noqa: E731
    predict = model.classify

  def see(seed, x):
    """Returns what `predict` takes of examples; embeddings are made once."""
    if hparams.trained == "all":
      return x
    return adaptation.embed(model, model.initial_backbone(seed), x)

  def complete(seed, trained):
    if hparams.trained == "all":
      return trained
    return split_model.SplitWeights(model.initial_backbone(seed), trained)

  def predict_all(weights, state, seen):
    """Returns the probabilities of L, F and the snapshots that were drawn."""

    def of(trained):
      logits = evaluation.predict_in_batches(
        lambda batch: predict(trained, batch), seen, model.num_classes
      )
      return tf.nn.softmax(logits)

    nothing = tf.zeros([tf.shape(seen)[0], model.num_classes])
    return snapshot_ensembles.Probabilities(
      of(state.own),
      of(weights.federated),
      tf.map_fn(
        lambda each: tf.cond(each[1] > 0, lambda: of(each[0]), lambda: nothing),
        (weights.snapshots, state.ensemble.drawn),
        fn_output_signature=tf.TensorSpec([None, model.num_classes]),
      ),
    )

  def predict_mixture(weights, state, seed, x):
    of_models = predict_all(weights, state, see(seed, x))
    mixture = snapshot_ensembles.mix(hparams, state.ensemble, of_models)
    return snapshot_ensembles.log_of(mixture.total)

  def train_client(weights, state, data, round_num):
    lesson = stream_labels.lesson(
      model,
      hparams,
      complete(data.seed, state.own),
      data,
      lambda x: predict_mixture(weights, state, data.seed, x),
    )
    examples = lesson.examples._replace(x=see(data.seed, lesson.examples.x))
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
    ensemble = snapshot_ensembles.admit_and_draw(
      hparams,
      snapshot_ensembles.score(
        hparams,
        state.ensemble,
        predict_all(weights, state, examples.x),
        lambda logits: adaptation.risk(
          logits, examples.y, lesson.class_weights
        ),
      ),
      round_num,
      randomness.fold(seed, 0),
    )

    def loss(both, batch):
      return tf.add_n(
        [
          adaptation.risk(
            predict(trained, batch.x), batch.y, lesson.class_weights
          )
          for trained in both
        ]
      )

    result = local_training.train_on_batches(
      loss,
      (state.own, weights.federated),
      examples,
      local_training.num_local_steps(hparams, examples, round_num),
      randomness.fold(seed, 1),
      hparams,
      round_num=round_num,
    )
    own, federated = result.weights
    return process.ClientResult(
      update=tf.nest.map_structure(tf.subtract, federated, weights.federated),
      client_state=ClientState(own, ensemble),
      loss=result.loss / 2.0,
    )

  def update_server(weights, mean_update, contribution, round_num):
    del contribution
    federated = tf.nest.map_structure(tf.add, weights.federated, mean_update)
    return Weights(
      federated,
      snapshot_ensembles.keep_snapshot(
        hparams, weights.snapshots, federated, round_num
      ),
    )

  def initial_weights(seed):
    federated = first(seed)
    return Weights(
      federated,
      tf.nest.map_structure(
        lambda w: tf.stack([w] * hparams.max_snapshots), federated
      ),
    )

  return process.Work(
    initial_weights=initial_weights,
    initial_client_state=lambda seed, weights: ClientState(
      first(seed), snapshot_ensembles.initial(hparams)
    ),
    train_client=train_client,
    update_server=update_server,
    predict_as_client=lambda weights, state, data, examples: predict_mixture(
      weights, state, data.seed, examples.x
    ),
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
