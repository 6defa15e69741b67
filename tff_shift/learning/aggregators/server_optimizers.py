"""Server optimizers: the server's step along the mean update D of a round.

FedAvgM: "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification" (Hsu, Qi, Brown; 2019):

    m <- momentum m + D,   x <- x + learning_rate m

FedAdagrad, FedYogi and FedAdam: "Adaptive Federated Optimization" (Reddi et
al.; ICLR 2021), Algorithm 2. m starts at 0, v at tau^2; no bias correction:

    m <- beta_1 m + (1 - beta_1) D           (FedAdagrad: m = D)
    v <- v + D^2                              (FedAdagrad)
    v <- v - (1 - beta_2) D^2 sign(v - D^2)   (FedYogi)
    v <- beta_2 v + (1 - beta_2) D^2          (FedAdam)
    x <- x + learning_rate m / (sqrt(v) + tau)

TFF's optimizers of these names differ: its Adam and Yogi correct the bias, its
Adagrad adds tau inside the root. Its momentum is equal.

Choices:
  * Optimizers step in the phase, not in the aggregator: an optimizer may read
    the weights (weight decay), and its state is not broadcast.
  * v starts at tau^2, of which the paper asks for at least this. FedAvgM is
    without Nesterov momentum, as in its paper's equation. The default learning
    rates are 1 (FedAvgM) and 0.1: the papers tune them.
  * Statistics of batch normalisation are pooled, never stepped. An algorithm
    with its own `update_server` calls `info.step` where it adds the mean
    update; `con_free` adds more, and is refused.
"""

import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import arguments
from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import server_optimizer_hparams


def _second_moment(name, hparams, v, squared):
  if name == "fed_adagrad":
    return v + squared
  if name == "fed_yogi":
    return v - (1 - hparams.beta_2) * squared * tf.sign(v - squared)
  return hparams.beta_2 * v + (1 - hparams.beta_2) * squared


class _Adaptive(tff.learning.optimizers.Optimizer):
  """FedAdagrad, FedYogi or FedAdam."""

  def __init__(
    self, name: str, hparams: server_optimizer_hparams.AdaptiveHParams
  ):
    self._name = name
    self._hparams = hparams

  def initialize(self, specs: Any) -> Any:
    v = tf.nest.map_structure(
      lambda spec: tf.fill(spec.shape, tf.square(self._hparams.tau)), specs
    )
    if self._name == "fed_adagrad":
      return (v,)
    return tf.nest.map_structure(tf.zeros_like, v), v

  def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
    update = tf.nest.map_structure(tf.negative, gradients)
    *first, v = state
    v = tf.nest.map_structure(
      lambda old, each: _second_moment(
        self._name, self._hparams, old, tf.square(each)
      ),
      v,
      update,
    )
    m = update
    if isinstance(self._hparams, server_optimizer_hparams.FedAdamHParams):
      beta_1 = self._hparams.beta_1
      m = tf.nest.map_structure(
        lambda old, each: beta_1 * old + (1 - beta_1) * each, first[0], update
      )
    stepped = tf.nest.map_structure(
      lambda w, m, v: (
        w + self._hparams.learning_rate * m / (tf.sqrt(v) + self._hparams.tau)
      ),
      weights,
      m,
      v,
    )
    return ((m, v) if first else (v,)), stepped


def build(name: str, **values: float) -> tff.learning.optimizers.Optimizer:
  """Builds a server optimizer, the argument of `algorithms.build`.

  Args:
    name: A key of `server_optimizer_hparams.HPARAMS`.
    **values: Hyper-parameters other than the defaults.

  Returns:
    The optimizer. Its gradient is minus the mean update.

  Raises:
    ValueError: If there is no such optimizer or hyper-parameter, or a value is
      out of range; one line that names it.

  Examples:
    >>> import tensorflow as tf
    >>> optimizer = ts.build_server_optimizer("fed_avg_m", learning_rate=0.5)
    >>> weights, gradient = tf.constant([1.0, 1.0]), tf.constant([2.0, 4.0])
    >>> state = optimizer.initialize(tf.TensorSpec([2]))
    >>> optimizer.next(state, weights, gradient)[1].numpy().tolist()
    [0.0, -1.0]
  """
  kinds = server_optimizer_hparams.HPARAMS
  arguments.choice("server_optimizer", name, tuple(kinds))
  known = [field.name for field in dataclasses.fields(kinds[name])]
  for each in values:
    arguments.choice(f"hyper-parameter of {name}", each, known)
  hparams = kinds[name](**values)
  hyperparameters.validate(hparams)
  if name == "fed_avg_m":
    return tff.learning.optimizers.build_sgdm(
      hparams.learning_rate, hparams.momentum
    )
  return _Adaptive(name, hparams)
