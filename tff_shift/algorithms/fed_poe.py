"""FedPOE: an ensemble of the client's model, the server model and snapshots.

Personalized Federated Learning with Mixture of Models for Adaptive Prediction
and Model Fine-Tuning (Ghari, Shen; NeurIPS 2024, arXiv:2410.21547), Fed-POE; a
baseline of Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under
Distribution Shift (Park, Joe, Kim, Im, Kwon; 2026), Table 1.

A client predicts probabilities with its own model L, the federated model F and
snapshots S_j of F (S_0 is the pre-trained model):

    tuned = (a L(x) + b F(x)) / (a + b)
    stored = sum_j v_j S_j(x) / sum_j v_j, over the drawn snapshots
    p = (c tuned + d stored) / (c + d)

The snapshots are drawn M times with replacement, S_j with probability
p_j = v_j / sum v. All ensemble weights start at 1. In a round the client first
updates them on its training data: a, b, c, d are multiplied by
exp(-meta_rate loss) of L, F, tuned, stored, and v_j of a drawn snapshot by
exp(-meta_rate loss_j / (1 - (1 - p_j)^M)), whose exponent is unbiased over
draws. A client therefore keeps sums of losses instead of weights. A new
snapshot S_j starts at

    v_j = exp(-meta_rate sum_t loss_t(S_j)),

with loss_t its loss on the client's training data of round t, over all rounds
so far. Then L and a copy of F are trained on the same batches. The server
averages the copies, and stores the mean as a snapshot every `snapshot_period`
rounds.

What leaves a client: the update of the trained weights of F, and the mean
training loss. L, the ensemble weights and the drawn snapshots stay.

Equations and constants follow the authors' program
(github.com/pouyamghari/Fed-POE), except that, as in the paper, snapshots are of
F (the program mixes the client's own model again), and clients train separate
copies of F (in the program they train one object in turn).

Choices:
  * The rate is 0.01, the program's base rate, and the rate of the ensemble
    weights 1, both divided by the square root of 100 steps (`learning_rate`,
    `meta_rate`). Plain gradient descent, without the program's momentum, decay
    and decreasing rates.
  * loss_t(S_j) is the new snapshot's own loss on the data that the client
    learned from in round t, as in the program. With labelled examples the sum
    over rounds follows from the sum of the class weights. Of pseudo-labelled
    examples the last 1,000 are kept and represent all (`past_examples`);
    `snapshot_losses=federated` takes the loss of each round's federated model.
  * The last layer is trained, as in the program; the rest stays pre-trained,
    and examples are embedded once (`trained=all`).
  * The program's steps, on the last ten examples, are rounds here: a client
    scores all models, draws snapshots for the next predictions, and then
    trains. What it predicts with is in its state. A snapshot every 20 rounds,
    at most 26 (500 rounds); later ones are not kept (`snapshot_period`,
    `max_snapshots`, `num_draws`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import draws
from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import stream_labels
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

# Keeps the logarithm of a probability finite.
_SMALLEST_PROBABILITY = 1e-30


@dataclasses.dataclass(frozen=True)
class HParams(stream_labels.StreamLabelsHParams, hyperparameters.LocalHParams):
  """Hyper-parameters of FedPOE."""

  meta_rate: float = hyperparameters.hparam(
    0.1, "How fast a model's weight decreases with its loss.", minimum=0
  )
  snapshot_period: int = hyperparameters.hparam(
    20,
    "Number of rounds between two snapshots of the federated model.",
    minimum=1,
  )
  max_snapshots: int = hyperparameters.hparam(
    26,
    "Maximum number of snapshots, including the pre-trained model; 26: all"
    " snapshots of 500 rounds, with snapshot_period=20.",
    minimum=1,
  )
  num_draws: int = hyperparameters.hparam(
    8, "M: number of snapshots drawn with replacement.", minimum=1
  )
  snapshot_losses: str = hyperparameters.hparam(
    "own",
    "Past losses of a new snapshot: own, its losses on the client's training"
    " data of all earlier rounds, as published; federated, the losses that the"
    " federated model had in these rounds.",
    choices=("own", "federated"),
  )
  local_epochs: int = hyperparameters.hparam(
    1,
    "Epochs per round over the client's training data, rounded up to whole"
    " batches; 0: use local_steps.",
    minimum=0,
    published=True,
  )
  learning_rate: float = hyperparameters.hparam(
    1e-3,
    "The clients' learning rate.",
    minimum=0,
    exclusive_minimum=True,
    published=True,
  )
  trained: str = hyperparameters.hparam(
    "last_layer",
    "The weights that are trained and stored in snapshots: last_layer, the last"
    " linear layer on the fixed pre-trained backbone; all, all weights.",
    choices=("last_layer", "all"),
  )
  past_examples: int = hyperparameters.hparam(
    1000,
    "With stream_labels=pseudo and snapshot_losses=own: number of latest"
    " examples that a client keeps for the past losses of new snapshots.",
    minimum=1,
  )


class Weights(NamedTuple):
  """The server weights.

  Attributes:
    federated: The trained weights of F.
    snapshots: The weights of the snapshots, with a first axis of max_snapshots;
      the pre-trained weights for snapshots that do not exist yet.
  """

  federated: Any
  snapshots: Any


class Ensemble(NamedTuple):
  """The losses that determine a client's ensemble weights.

  Attributes:
    losses: The sums of the losses of L, F, tuned and stored, float32 scalars.
    snapshot_losses: The sums of the losses of the snapshots, [max_snapshots]
      float32.
    drawn: 1 for a drawn snapshot, else 0, [max_snapshots] float32.
    num_snapshots: The number of snapshots in the client's ensemble, an int32
      scalar.
  """

  losses: tuple[Any, Any, Any, Any]
  snapshot_losses: Any
  drawn: Any
  num_snapshots: Any


class Kept(NamedTuple):
  """Examples of past rounds, the latest first.

  Attributes:
    x: The inputs of the trained weights, [past_examples, ...]: examples or
      embeddings.
    y: Their pseudo-labels, [past_examples] int32.
    weights: 1 over the number of examples of their round, [past_examples]
      float32; 0 for entries without an example.
  """

  x: Any
  y: Any
  weights: Any


class Past(NamedTuple):
  """A client's training data of past rounds.

  Attributes:
    class_weights: The sum over its rounds of the weight of an example of each
      class, [num_classes] float32.
    kept: A `Kept` with `stream_labels=pseudo`; otherwise empty, because the
      client has the labelled examples.
  """

  class_weights: Any
  kept: Any


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    own: The trained weights of L.
    ensemble: An `Ensemble`.
    past: A `Past`, or empty with `snapshot_losses=federated`.
  """

  own: Any
  ensemble: Any
  past: Any


class Probabilities(NamedTuple):
  """Predictions of the models for n examples.

  Attributes:
    own: The predictions of L, [n, num_classes] float32.
    federated: The predictions of F, [n, num_classes] float32.
    snapshots: The predictions of the drawn snapshots, [max_snapshots, n,
      num_classes] float32; zeros for the others.
  """

  own: Any
  federated: Any
  snapshots: Any


class Mixture(NamedTuple):
  """Mixed predictions, each [n, num_classes] float32.

  Attributes:
    tuned: The mixture of L and F.
    stored: The mixture of the snapshots.
    total: The mixture p of tuned and stored.
  """

  tuned: Any
  stored: Any
  total: Any


def initial_ensemble(hparams: HParams) -> Ensemble:
  """Returns the `Ensemble` of a client with the first snapshot only."""
  return Ensemble(
    losses=(tf.constant(0.0),) * 4,
    snapshot_losses=tf.zeros([hparams.max_snapshots]),
    drawn=tf.one_hot(0, hparams.max_snapshots),
    num_snapshots=tf.constant(1),
  )


def normalized_weights(meta_rate: float, losses, present=None) -> tf.Tensor:
  """Computes weights exp(-meta_rate * losses), divided by their sum.

  Args:
    meta_rate: How fast a weight decreases with the loss.
    losses: [n] float32.
    present: The models in the ensemble, [n] bool. None: all.

  Returns:
    [n] float32; 0 for other models.
  """
  exponents = -meta_rate * losses
  if present is not None:
    exponents = tf.where(present, exponents, exponents.dtype.min)
  return tf.nn.softmax(exponents)


def mix(
  hparams: HParams, ensemble: Ensemble, of_models: Probabilities
) -> Mixture:
  """Mixes the predictions of the models."""

  def blend(losses, one, other):
    weights = normalized_weights(hparams.meta_rate, tf.stack(losses))
    return weights[0] * one + weights[1] * other

  tuned = blend(ensemble.losses[:2], of_models.own, of_models.federated)
  of_drawn = normalized_weights(
    hparams.meta_rate, ensemble.snapshot_losses, ensemble.drawn > 0
  )
  stored = tf.tensordot(of_drawn, of_models.snapshots, 1)
  return Mixture(tuned, stored, blend(ensemble.losses[2:], tuned, stored))


def log_of(probabilities) -> tf.Tensor:
  """Returns the logarithms of probabilities, bounded to stay finite."""
  return tf.math.log(tf.maximum(probabilities, _SMALLEST_PROBABILITY))


def draw_probabilities(hparams: HParams, losses, num_snapshots) -> tf.Tensor:
  """Computes the p_j, [max_snapshots] float32; 0 for missing snapshots."""
  is_there = tf.range(hparams.max_snapshots) < num_snapshots
  return normalized_weights(hparams.meta_rate, losses, is_there)


def draw(probabilities, num_draws: int, seed) -> tf.Tensor:
  """Draws snapshots with replacement.

  Args:
    probabilities: The p_j, [n] float32.
    num_draws: The number of draws M.
    seed: An int32 tensor of shape [2].

  Returns:
    1 for a snapshot that was drawn at least once, else 0; [n] float32.
  """
  drawn = draws.categories(num_draws, probabilities, seed)
  return tf.reduce_max(tf.one_hot(drawn, probabilities.shape[0]), axis=0)


def importance_weighted(
  losses, probabilities, drawn, num_draws: int
) -> tf.Tensor:
  """Divides losses by 1 - (1 - p_j)^M, the probability of being drawn.

  Args:
    losses: [n] float32.
    probabilities: The p_j, [n] float32.
    drawn: 1 for a drawn snapshot, else 0; [n] float32.
    num_draws: The number of draws M.

  Returns:
    [n] float32; 0 for a snapshot that was not drawn.
  """
  chances = -tf.math.expm1(num_draws * tf.math.log1p(-probabilities))
  return drawn * tf.math.divide_no_nan(losses, chances)


def score(
  hparams: HParams,
  ensemble: Ensemble,
  of_models: Probabilities,
  loss: Callable[[Any], tf.Tensor],
) -> Ensemble:
  """Adds the losses of a round.

  Args:
    hparams: The rate and the number of draws.
    ensemble: The state before the round.
    of_models: The models' predictions for the examples of the round.
    loss: `(log_probabilities [n, num_classes]) -> a float32 scalar` of these
      examples, at least 0.

  Returns:
    The state with new sums of losses.
  """
  mixture = mix(hparams, ensemble, of_models)
  predicted = (
    of_models.own,
    of_models.federated,
    mixture.tuned,
    mixture.stored,
  )
  of_snapshots = tf.map_fn(
    lambda probabilities: loss(log_of(probabilities)), of_models.snapshots
  )
  return ensemble._replace(
    losses=tuple(
      before + loss(log_of(probabilities))
      for before, probabilities in zip(ensemble.losses, predicted, strict=True)
    ),
    snapshot_losses=ensemble.snapshot_losses
    + importance_weighted(
      of_snapshots,
      draw_probabilities(
        hparams, ensemble.snapshot_losses, ensemble.num_snapshots
      ),
      ensemble.drawn,
      hparams.num_draws,
    ),
  )


def admit_and_draw(
  hparams: HParams,
  ensemble: Ensemble,
  round_num,
  seed,
  past_losses: Callable[[Any], tf.Tensor] | None = None,
) -> Ensemble:
  """Adds the snapshots up to a round, and draws snapshots for the next one.

  Args:
    hparams: The period and the number of draws.
    ensemble: The state before.
    round_num: The round, an int32 scalar; snapshots are of earlier rounds.
    seed: An int32 tensor of shape [2].
    past_losses: `(is_new [max_snapshots] bool) -> losses [max_snapshots]
      float32`, the initial losses of new snapshots; other entries are ignored.
      None: the sum of all losses of F so far.

  Returns:
    The state.
  """
  number = tf.minimum(
    1 + round_num // hparams.snapshot_period, hparams.max_snapshots
  )
  place = tf.range(hparams.max_snapshots)
  is_new = (place >= ensemble.num_snapshots) & (place < number)
  first = past_losses(is_new) if past_losses else ensemble.losses[1]
  losses = tf.where(is_new, first, ensemble.snapshot_losses)
  return ensemble._replace(
    snapshot_losses=losses,
    drawn=draw(
      draw_probabilities(hparams, losses, number), hparams.num_draws, seed
    ),
    num_snapshots=number,
  )


def keep_snapshot(
  hparams: HParams, snapshots: Any, federated: Any, round_num
) -> Any:
  """Keeps the weights of F as a snapshot at the end of a period.

  Args:
    hparams: The period.
    snapshots: Weights, each with a first axis of max_snapshots.
    federated: The weights of F at the end of the round.
    round_num: The round, an int32 scalar.

  Returns:
    The snapshots; unchanged if all max_snapshots are stored.
  """
  done = round_num + 1
  ends = tf.equal(done % hparams.snapshot_period, 0)
  row = tf.one_hot(
    done // hparams.snapshot_period, hparams.max_snapshots, True, False
  )

  def keep(table, new):
    mask = tf.reshape(row & ends, [-1] + [1] * new.shape.rank)
    return tf.where(mask, new, table)

  return tf.nest.map_structure(keep, snapshots, federated)


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedPOE; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  a `ClientState`; a round has one phase.
  """
  predict: Callable[[Any, Any], tf.Tensor]
  if hparams.trained == "all":
    first, predict = model.initial_weights, model.predict
  else:
    model = split_model.with_head(model, "last_layer")
    first = lambda seed: model.initial_weights(seed).head  # noqa: E731
    predict = model.classify

  def see(seed, x):
    """Returns the inputs of `predict`: examples, or their embeddings."""
    if hparams.trained == "all":
      return x
    return adaptation.embed(model, model.initial_backbone(seed), x)

  def complete(seed, trained):
    if hparams.trained == "all":
      return trained
    return split_model.SplitWeights(model.initial_backbone(seed), trained)

  def probabilities(trained, seen):
    logits = evaluation.predict_in_batches(
      lambda batch: predict(trained, batch), seen, model.num_classes
    )
    return tf.nn.softmax(logits)

  def map_chosen(function, snapshots, chosen, otherwise):
    """Applies a function to the chosen snapshots; `otherwise` for others."""
    return tf.map_fn(
      lambda each: tf.cond(
        each[1], lambda: function(each[0]), lambda: otherwise
      ),
      (snapshots, chosen),
      fn_output_signature=tf.TensorSpec(
        [None] * otherwise.shape.rank, otherwise.dtype
      ),
    )

  def predict_all(weights, state, seen):
    """Returns the probabilities of L, F and the drawn snapshots."""
    return Probabilities(
      probabilities(state.own, seen),
      probabilities(weights.federated, seen),
      tf.ensure_shape(
        map_chosen(
          lambda snapshot: probabilities(snapshot, seen),
          weights.snapshots,
          state.ensemble.drawn > 0,
          tf.zeros([tf.shape(seen)[0], model.num_classes]),
        ),
        [hparams.max_snapshots, None, model.num_classes],
      ),
    )

  def remember(past, lesson, seen):
    """Adds a round's training data to the data of past rounds."""
    kept = past.kept
    if kept:
      num_new = tf.shape(seen)[0]
      weight = tf.math.divide_no_nan(1.0, tf.cast(num_new, tf.float32))
      kept = tf.nest.map_structure(
        lambda new, old: tf.ensure_shape(
          tf.concat([new, old], axis=0)[: hparams.past_examples], old.shape
        ),
        Kept(seen, lesson.examples.y, tf.fill([num_new], weight)),
        kept,
      )
    return Past(past.class_weights + lesson.class_weights, kept)

  def past_losses(past, snapshots, examples, is_new):
    """Returns the sums of new snapshots' losses over past rounds."""
    x, y, weights = past.kept or Kept(
      examples.x, examples.y, tf.ones_like(examples.y, tf.float32)
    )

    def loss(snapshot):
      logits = log_of(probabilities(snapshot, x))
      losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
      losses *= weights * tf.gather(past.class_weights, y)
      return tf.math.divide_no_nan(
        tf.reduce_sum(losses), tf.reduce_sum(weights)
      )

    return map_chosen(loss, snapshots, is_new, tf.constant(0.0))

  def predict_mixture(weights, state, seed, x):
    of_models = predict_all(weights, state, see(seed, x))
    mixture = mix(hparams, state.ensemble, of_models)
    return log_of(mixture.total)

  def train_client(weights, state, data, round_num):
    lesson = stream_labels.lesson(
      model,
      hparams,
      complete(data.seed, state.own),
      data,
      lambda x: predict_mixture(weights, state, data.seed, x),
    )
    examples = lesson.examples._replace(x=see(data.seed, lesson.examples.x))
    past = state.past
    if past:
      past = remember(past, lesson, examples.x)
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, round_num)
    ensemble = admit_and_draw(
      hparams,
      score(
        hparams,
        state.ensemble,
        predict_all(weights, state, examples.x),
        lambda logits: adaptation.risk(
          logits, examples.y, lesson.class_weights
        ),
      ),
      round_num,
      randomness.fold(seed, 0),
      functools.partial(past_losses, past, weights.snapshots, examples)
      if past
      else None,
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
    return algorithm.ClientResult(
      update=tf.nest.map_structure(tf.subtract, federated, weights.federated),
      client_state=ClientState(own, ensemble, past),
      loss=result.loss / 2.0,
    )

  def update_server(weights, mean_update, plaintext_sum, info):
    del plaintext_sum
    federated = info.step(weights.federated, mean_update)
    return Weights(
      federated,
      keep_snapshot(hparams, weights.snapshots, federated, info.round_num),
    )

  def initial_weights(seed):
    federated = first(seed)
    return Weights(
      federated,
      tf.nest.map_structure(
        lambda w: tf.broadcast_to(w, [hparams.max_snapshots, *w.shape]),
        federated,
      ),
    )

  def initial_past():
    if hparams.snapshot_losses == "federated":
      return ()
    kept: Any = ()
    if hparams.stream_labels == "pseudo":
      of_one: tuple[int, ...] = (model.embedding_size,)
      dtype = tf.float32
      if hparams.trained == "all":
        of_one, dtype = model.input_shape, model.input_dtype
      size = hparams.past_examples
      kept = Kept(
        tf.zeros([size, *of_one], dtype),
        tf.zeros([size], tf.int32),
        tf.zeros([size]),
      )
    return Past(tf.zeros([model.num_classes]), kept)

  return algorithm.AlgorithmSpec(
    initial_weights=initial_weights,
    initial_client_state=lambda seed, weights: ClientState(
      first(seed), initial_ensemble(hparams), initial_past()
    ),
    train_client=train_client,
    update_server=update_server,
    predict_as_client=lambda weights, state, data, examples: predict_mixture(
      weights, state, data.seed, examples.x
    ),
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
