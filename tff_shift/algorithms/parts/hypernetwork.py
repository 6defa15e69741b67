"""A hypernetwork: maps a vector to the weights of a target network.

Fed-3DA: A Dynamic and Personalized Federated Learning Framework (Wang, Sun, Wo,
Liu; ICASSP 2023), Section 2.3: theta = hypernetwork(phi, r). It is the
hypernetwork h(v; phi) of Personalized Federated Learning using Hypernetworks
(Shamsian, Navon, Fetaya, Chechik; ICML 2021).

The first paper specifies only that the hypernetwork is deep. Here it has the
architecture of the second: fully connected layers with ReLU and a separate
linear output for each weight tensor of the target network.

Neither paper specifies initial weights. Here the biases of the outputs are
initial weights of the target network, and the kernels of the outputs are small.
Initially every vector therefore gives nearly the same target network, the one
from which FedAvg with the same seed starts.

Choices:
  * The authors' program of pFedHN has one more linear layer, without ReLU,
    before the outputs, which adds no functions to those of the outputs
    (`hidden_width`, `num_hidden`).
  * The update is (rate * features) x change, an outer product, instead of rate
    * (features x change): the rate then scales a vector and not a kernel. The
    vector's gradient adds the outputs' products in the order of the layers.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift._util import draws
from tff_shift.learning import hyperparameters
from tff_shift.learning import randomness
from tff_shift.models import split_model

# Root mean square difference between a target network's initial weights and the
# biases, if the numbers of the vector are of order 1.
_INITIAL_SPREAD = 0.01

# Folded into the seeds of hidden and output layers; the target network uses 0
# and 1 (`SplitModel.initial_weights`).
_HIDDEN, _OUTPUT = 2, 3


@dataclasses.dataclass(frozen=True)
class MetaHParams(hyperparameters.LocalHParams):
  """Hyper-parameters of a hypernetwork and of its target network's training.

  The Fed-3DA paper gives no values; the defaults are from the program of the
  pFedHN paper's authors (https://github.com/AvivSham/pFedHN).
  """

  hidden_width: int = hyperparameters.hparam(
    100, "Width of the hypernetwork's hidden layers.", minimum=1
  )
  num_hidden: int = hyperparameters.hparam(
    3, "Number of the hypernetwork's hidden layers.", minimum=1, maximum=100
  )
  meta_learning_rate: float = hyperparameters.hparam(
    0.01,
    "Learning rate of the hypernetwork (alpha of Algorithm 2 of the Fed-3DA"
    " paper). For a small rate, a target network moves by at least rate * (1 +"
    " squared norm of the last hidden layer) times its client's local update;"
    " 0: the hypernetwork does not change.",
    minimum=0,
  )


class Linear(NamedTuple):
  """A linear layer: kernel [inputs, *outputs] and bias [*outputs], float32."""

  kernel: Any
  bias: Any


class MetaWeights(NamedTuple):
  """The weights of a hypernetwork, phi.

  Attributes:
    hidden: A `Linear` for each hidden layer, starting at the input.
    output: A `Linear` for each weight tensor of the target network, backbone
      before head; its bias has the shape of the tensor.
  """

  hidden: Any
  output: Any


def _apply(layer: Linear, vector) -> tf.Tensor:
  """Applies a layer to a vector [inputs]; returns [*outputs]."""
  return tf.tensordot(vector, layer.kernel, axes=1) + layer.bias


def _features(phi: MetaWeights, r) -> tf.Tensor:
  """Computes the last hidden layer, [hidden_width]."""
  features = r
  for layer in phi.hidden:
    features = tf.nn.relu(_apply(layer, features))
  return features


@dataclasses.dataclass(frozen=True)
class Hypernetwork:
  """A hypernetwork h(r; phi), a pure function of its weights phi.

  Attributes:
    model: The target network.
    input_size: The length of the vector r.
    hidden_width: The width of a hidden layer.
    num_hidden: The number of hidden layers, at least 1.
  """

  model: split_model.SplitModel
  input_size: int
  hidden_width: int
  num_hidden: int

  def initial_weights(self, seed) -> MetaWeights:
    """Draws initial weights; see the docstring of the module.

    Kernels are normal. Kernels of hidden layers have variance 2 / inputs, which
    preserves the scale through ReLU; biases of hidden layers are 0.

    Args:
      seed: An int32 tensor of shape [2]. Equal seeds give equal weights.

    Returns:
      The weights, phi. The biases of the outputs are
      `model.initial_weights(seed)`.
    """

    def draw_kernel(shape, scale, *path):
      deviation = scale * math.sqrt(1 / shape[0])
      return deviation * draws.normal(shape, randomness.fold(seed, *path))

    hidden, output = [], []
    for position in range(self.num_hidden):
      inputs = self.hidden_width if position else self.input_size
      shape = inputs, self.hidden_width
      kernel = draw_kernel(shape, math.sqrt(2), _HIDDEN, position)
      hidden.append(Linear(kernel, tf.zeros([self.hidden_width])))
    biases = tf.nest.flatten(self.model.initial_weights(seed))
    for position, bias in enumerate(biases):
      shape = self.hidden_width, *bias.shape
      kernel = draw_kernel(shape, _INITIAL_SPREAD, _OUTPUT, position)
      output.append(Linear(kernel, bias))
    return MetaWeights(tuple(hidden), tuple(output))

  def __call__(self, phi: MetaWeights, r) -> split_model.SplitWeights:
    """Computes the weights of the target network, theta = h(r; phi).

    Args:
      phi: The weights of the hypernetwork.
      r: A vector, [input_size] float32.
    """
    return self._weights(phi, _features(phi, r))

  def with_pull_back(
    self, phi: MetaWeights, r
  ) -> tuple[
    split_model.SplitWeights,
    Callable[[split_model.SplitWeights, float], tuple[MetaWeights, tf.Tensor]],
  ]:
    """Computes the weights of the target network, and their derivative.

    Args:
      phi: The weights of the hypernetwork.
      r: A vector, [input_size] float32.

    Returns:
      theta = h(r; phi), and `(direction, rate) -> (rate * (dh/dphi)^T
      direction, (dh/dr)^T direction)`, the vector-Jacobian products with a
      direction in the structure of theta. To be called once.
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch((phi.hidden, r))
      features = _features(phi, r)

    def pull_back(direction, rate):
      changes = tf.nest.flatten(direction)
      by_features = tf.add_n(
        [
          tf.tensordot(layer.kernel, change, axes=change.shape.rank)
          for layer, change in zip(phi.output, changes, strict=True)
        ]
      )
      by_hidden, by_r = tape.gradient(
        features, (phi.hidden, r), output_gradients=by_features
      )
      # The rate scales the factors: a kernel's gradient is their outer product,
      # as large as all of the kernel.
      scaled = rate * features
      output = tuple(
        Linear(tf.tensordot(scaled, change, axes=0), rate * change)
        for change in changes
      )
      hidden = tf.nest.map_structure(lambda each: rate * each, by_hidden)
      return MetaWeights(hidden, output), by_r

    return self._weights(phi, features), pull_back

  def _weights(self, phi: MetaWeights, features) -> split_model.SplitWeights:
    """Applies the linear outputs to the last hidden layer."""
    weights = tuple(_apply(layer, features) for layer in phi.output)
    num_backbone = len(self.model.backbone.shapes)
    return split_model.SplitWeights(
      weights[:num_backbone], weights[num_backbone:]
    )

  @property
  def num_parameters(self) -> int:
    """The number of weights in phi."""
    widths = [self.input_size] + [self.hidden_width] * self.num_hidden
    hidden = sum(
      (inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths)
    )
    return hidden + (self.hidden_width + 1) * self.model.num_parameters
