"""Predictions of models and of their snapshots together, weighted by losses.

Personalized Federated Learning with Mixture of Models for Adaptive Prediction
and Model Fine-Tuning (Ghari, Shen; NeurIPS 2024): the mixture of Fed-POE, whose
equations stand in `algorithms/fed_poe.py`. All weights are of the form
exp(-meta_rate * loss): what is kept are sums of losses.
"""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import hyperparameters

# Keeps the logarithm of a probability finite.
_SMALLEST = 1e-30


@dataclasses.dataclass(frozen=True)
class EnsembleHParams(hyperparameters.HParams):
  """How models are weighted, and which snapshots there are."""

  meta_rate: float = hyperparameters.hparam(
    0.1, "How fast the weight of a model falls with its loss.", minimum=0
  )
  snapshot_period: int = hyperparameters.hparam(
    20,
    "Rounds from one snapshot of the federated model to the next.",
    minimum=1,
  )
  max_snapshots: int = hyperparameters.hparam(
    26,
    "Snapshots that there is room for, the pre-trained model included: all of"
    " 500 rounds, at a period of 20.",
    minimum=1,
  )
  num_draws: int = hyperparameters.hparam(
    8, "M: draws of snapshots, with replacement.", minimum=1
  )
  snapshot_losses: str = hyperparameters.hparam(
    "own",
    "The past losses that a new snapshot starts with: own, those that it has"
    " itself on what the client has learned from so far, as published;"
    " federated, those that the federated model of each round had in that"
    " round.",
    choices=("own", "federated"),
  )


class Probabilities(NamedTuple):
  """What the models predict of n examples.

  Attributes:
    own: Those of L, [n, num_classes] float32.
    federated: Those of F, likewise.
    snapshots: Those of the snapshots that were drawn, [max_snapshots, n,
      num_classes] float32; zeros for the others.
  """

  own: Any
  federated: Any
  snapshots: Any


class Mixture(NamedTuple):
  """What they predict together, each [n, num_classes] float32.

  Attributes:
    tuned: The mixture of L and F.
    stored: That of the snapshots.
    total: That of tuned and stored.
  """

  tuned: Any
  stored: Any
  total: Any


class Ensemble(NamedTuple):
  """What a client knows of its models.

  Attributes:
    losses: The sums of the losses of L, F, tuned and stored, float32 scalars.
    snapshot_losses: Those of the snapshots, [max_snapshots] float32.
    drawn: 1 for a snapshot that was drawn, else 0, [max_snapshots] float32.
    num_snapshots: How many snapshots it knows of, an int32 scalar.
  """

  losses: tuple[Any, Any, Any, Any]
  snapshot_losses: Any
  drawn: Any
  num_snapshots: Any


def initial(hparams: EnsembleHParams) -> Ensemble:
  """Returns the state of a client that knows of the first snapshot alone."""
  return Ensemble(
    losses=(tf.constant(0.0),) * 4,
    snapshot_losses=tf.zeros([hparams.max_snapshots]),
    drawn=tf.one_hot(0, hparams.max_snapshots),
    num_snapshots=tf.constant(1),
  )


def shares(meta_rate: float, losses, present=None) -> tf.Tensor:
  """Computes weights exp(-meta_rate * losses), over their sum.

  Args:
    meta_rate: How fast a weight falls.
    losses: [n] float32.
    present: Which there are, [n] bool. None: all.

  Returns:
    [n] float32; 0 for those that there are not.
  """
  exponents = -meta_rate * losses
  if present is not None:
    exponents = tf.where(present, exponents, exponents.dtype.min)
  return tf.nn.softmax(exponents)


def known_shares(hparams: EnsembleHParams, losses, num_snapshots) -> tf.Tensor:
  """Computes the p_j, [max_snapshots] float32; 0 for those not known."""
  known = tf.range(hparams.max_snapshots) < num_snapshots
  return shares(hparams.meta_rate, losses, known)


def draw(probabilities, num_draws: int, seed) -> tf.Tensor:
  """Draws with replacement.

  Args:
    probabilities: [n] float32.
    num_draws: The number of draws.
    seed: An int32 tensor of shape [2].

  Returns:
    1 for what was drawn, at least once, else 0; [n] float32.
  """
  places = tf.random.stateless_categorical(
    tf.math.log(probabilities)[tf.newaxis], num_draws, seed
  )[0]
  return tf.reduce_max(tf.one_hot(places, probabilities.shape[0]), axis=0)


def importance_weighted(
  losses, probabilities, drawn, num_draws: int
) -> tf.Tensor:
  """Divides losses by the chance to be drawn; the mean over draws is a loss.

  Args:
    losses: [n] float32; those of what was not drawn do not count.
    probabilities: The p_j, [n] float32.
    drawn: What `draw` gives.
    num_draws: The number of draws.

  Returns:
    [n] float32; 0 for what was not drawn.
  """
  chances = -tf.math.expm1(num_draws * tf.math.log1p(-probabilities))
  return drawn * tf.math.divide_no_nan(losses, chances)


def mix(
  hparams: EnsembleHParams, ensemble: Ensemble, of_models: Probabilities
) -> Mixture:
  """Mixes what the models predict, on three levels."""

  def blend(losses, one, other):
    share = shares(hparams.meta_rate, tf.stack(losses))
    return share[0] * one + share[1] * other

  tuned = blend(ensemble.losses[:2], of_models.own, of_models.federated)
  of_drawn = shares(
    hparams.meta_rate, ensemble.snapshot_losses, ensemble.drawn > 0
  )
  stored = tf.tensordot(of_drawn, of_models.snapshots, 1)
  return Mixture(tuned, stored, blend(ensemble.losses[2:], tuned, stored))


def log_of(probabilities) -> tf.Tensor:
  """Returns logarithms, which stay finite."""
  return tf.math.log(tf.maximum(probabilities, _SMALLEST))


def score(
  hparams: EnsembleHParams,
  ensemble: Ensemble,
  of_models: Probabilities,
  loss: Callable[[Any], tf.Tensor],
) -> Ensemble:
  """Adds the losses of a round.

  Args:
    hparams: The rate and the number of draws.
    ensemble: The state of before.
    of_models: What the models predict of the examples of the round.
    loss: Log-probabilities [n, num_classes] of these to a float32 scalar, at
      least 0.

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
      known_shares(hparams, ensemble.snapshot_losses, ensemble.num_snapshots),
      ensemble.drawn,
      hparams.num_draws,
    ),
  )


def admit_and_draw(
  hparams: EnsembleHParams,
  ensemble: Ensemble,
  round_num,
  seed,
  past_losses: Callable[[Any], tf.Tensor] | None = None,
) -> Ensemble:
  """Takes in the snapshots up to a round, and draws those of the next.

  Args:
    hparams: The period and the number of draws.
    ensemble: The state of before.
    round_num: The round, an int32 scalar; snapshots are of the rounds before.
    seed: An int32 tensor of shape [2].
    past_losses: Which snapshots are new, [max_snapshots] bool, to the losses
      that they start with, [max_snapshots] float32, of which only theirs count.
      None: the sum of the losses that F has had so far.

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
    drawn=draw(known_shares(hparams, losses, number), hparams.num_draws, seed),
    num_snapshots=number,
  )


def keep_snapshot(
  hparams: EnsembleHParams, snapshots: Any, federated: Any, round_num
) -> Any:
  """Keeps the weights of F as a snapshot, where a period ends.

  Args:
    hparams: The period.
    snapshots: Weights, each with a first axis of max_snapshots.
    federated: The weights of F at the end of the round.
    round_num: The round, an int32 scalar.

  Returns:
    The snapshots; where there is no room, they stay as they are.
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
