"""Dynamic regret of Fed-ADE on a convex problem with exact solutions.

Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under Distribution
Shift (2026), section 5.2 and Appendix E. One client with fixed features and a
linear head receives unlabelled batches whose label distribution Q_t drifts. It
takes gradient steps on the risk of eq. 4 at the rate of eq. 9. Its dynamic
regret is its excess risk over T steps compared to knowing each Q_t:

    Reg_T = sum_t F^t(theta_t) - min_theta F^t(theta),

where theta_t is the client's parameter before it sees the batch of step t.
Theorem 3 bounds the mean of Reg_T by O(eta T + 1 / eta + sqrt(V T / eta)),
where V is the cumulative shift. With eta* = Theta((V / T)^(1/3)) this is
O(V^(1/3) T^(2/3)), eq. 18. (Eq. 17 prints sqrt(V T) / eta. The proof in E.1 has
eta under the root, and only this leads to eq. 18.)

The assumptions of the theorem hold here: a class is a finite set of examples,
so its risk and the confusion matrix are exact, and theta stays in a ball of
diameter Gamma. One assumption fails if Q_t is near the border of the simplex:
its estimate, which is clipped to the simplex, is biased there.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from scipy import optimize
from scipy import special

from tff_shift import arguments
from tff_shift.data import examples as examples_lib
from tff_shift.data import partition
from tff_shift.shift import bbse
from tff_shift.shift import dynamics
from tff_shift.techniques import adaptation

# Classes overlap such that four of five examples are classified correctly.
_NUM_CLASSES, _EMBEDDING_SIZE, _CLASS_SIZE, _SPREAD = 5, 8, 40, 0.5

# The largest entry of the gradient at an accepted optimum.
_GRADIENT_TOLERANCE = 1e-7


class Problem:
  """Softmax regression on classes that are finite sets of examples.

  The risk of class i is the mean cross-entropy of its examples and a quadratic
  term, F^{0,i}(theta) = mean_x -log p_i(x) + weight_decay / 2 |theta|^2, and
  F = sum_i Q_i F^{0,i} (eq. 3). The term makes the optimum unique. Since the
  risk of theta = 0 is log(num_classes), every optimum has norm at most
  `radius`, for any Q: the projection onto this ball excludes none.

  Attributes:
    num_classes: Number of classes.
    weight_decay: Strength of the quadratic term.
    radius: sqrt(2 log(num_classes) / weight_decay), half of Gamma.
    y: The classes in ascending order, [num_examples] int32.
    embeddings: [num_examples, embedding_size] float64.
    inputs: The embeddings and a column of ones for the bias.
    shape: The shape of theta, (embedding_size + 1, num_classes).
  """

  def __init__(self, weight_decay: float = 0.01, seed: partition.Seed = 0):
    """Draws the examples, Gaussian around a unit vector for each class.

    Args:
      weight_decay: Strength of the quadratic term, above 0.
      seed: Seed of the examples.

    Raises:
      ValueError: If `weight_decay` is not above 0, or the seed is not made of
        non-negative integers.
    """
    if not (arguments.is_number(weight_decay) and weight_decay > 0):
      raise ValueError(f"weight_decay must be above 0, got {weight_decay}")
    self.num_classes = _NUM_CLASSES
    self.weight_decay = weight_decay
    self.radius = float(np.sqrt(2 * np.log(_NUM_CLASSES) / weight_decay))
    self.y = np.repeat(np.arange(_NUM_CLASSES, dtype=np.int32), _CLASS_SIZE)
    rng = partition.generator("examples of the convex problem", seed)
    noise = rng.normal(size=(len(self.y), _EMBEDDING_SIZE))
    means = np.eye(_NUM_CLASSES, _EMBEDDING_SIZE)
    self.embeddings = means[self.y] + _SPREAD * noise
    self.inputs = np.column_stack([self.embeddings, np.ones(len(self.y))])
    self.shape = (_EMBEDDING_SIZE + 1, _NUM_CLASSES)

  def class_risks(self, theta: np.ndarray) -> np.ndarray:
    """Computes F^{0,i}, the risk of each class (eq. 3).

    Args:
      theta: Parameters, [..., *shape].

    Returns:
      [..., num_classes].
    """
    logits = self.inputs @ theta  # [..., num_examples, num_classes]
    of_truth = logits[..., np.arange(len(self.y)), self.y]
    losses = special.logsumexp(logits, axis=-1) - of_truth
    by_class = losses.reshape(*losses.shape[:-1], self.num_classes, -1)
    squares = np.sum(np.square(theta), axis=(-2, -1))
    return by_class.mean(axis=-1) + self.weight_decay / 2 * squares[..., None]

  def gradient(self, theta: np.ndarray, distribution: np.ndarray) -> np.ndarray:
    """Computes the gradient of F = sum_i Q_i F^{0,i}.

    Args:
      theta: Parameters, of shape `shape`.
      distribution: Q, [num_classes].

    Returns:
      The gradient, of the shape of `theta`.
    """
    errors = special.softmax(self.inputs @ theta, axis=1)
    errors[np.arange(len(self.y)), self.y] -= 1
    weights = distribution[self.y] / _CLASS_SIZE
    return (
      self.inputs.T @ (weights[:, None] * errors) + self.weight_decay * theta
    )

  def optimum(
    self, distribution: np.ndarray, start: np.ndarray | None = None
  ) -> np.ndarray:
    """Finds the theta of smallest risk.

    Args:
      distribution: Q, [num_classes].
      start: The start of the search; zeros by default.

    Returns:
      An array of shape `shape`. No entry of its gradient is above 1e-7, so its
      risk is at most size * 1e-14 / (2 weight_decay) above the minimum.

    Raises:
      RuntimeError: If the search does not converge.
    """

    def risk_and_gradient(flat):
      theta = flat.reshape(self.shape)
      return (
        distribution @ self.class_risks(theta),
        self.gradient(theta, distribution).ravel(),
      )

    found = optimize.minimize(
      risk_and_gradient,
      np.zeros(np.prod(self.shape)) if start is None else start.ravel(),
      jac=True,
      method="L-BFGS-B",
      options={"ftol": 0, "gtol": _GRADIENT_TOLERANCE, "maxcor": 30},
    )
    if np.abs(found.jac).max() > _GRADIENT_TOLERANCE:
      raise RuntimeError(f"no optimum for {distribution}: {found.message}")
    return found.x.reshape(self.shape)

  @functools.cached_property
  def pretrained(self) -> np.ndarray:
    """The optimum for Q_0, the uniform distribution, as float32."""
    uniform = np.full(self.num_classes, 1 / self.num_classes)
    return self.optimum(uniform).astype(np.float32)

  def optimal_risks(self, distributions: np.ndarray) -> np.ndarray:
    """Computes min_theta F for each of several label distributions.

    Args:
      distributions: [n, num_classes]. Equal ones are solved once.

    Returns:
      [n].
    """
    # Sorted, because neighbours have similar optima.
    unique, inverse = np.unique(distributions, axis=0, return_inverse=True)
    theta, risks = None, []
    for distribution in unique:
      theta = self.optimum(distribution, theta)
      risks.append(distribution @ self.class_risks(theta))
    return np.array(risks)[inverse]


class Stream(NamedTuple):
  """A client's stream.

  Attributes:
    distributions: Q_t at the steps 0 to T, [T + 1, num_classes].
    examples: The examples of the steps 1 to T as indices of `Problem.inputs`,
      [T, num_examples] int32.
  """

  distributions: np.ndarray
  examples: np.ndarray

  @property
  def cumulative_shift(self) -> float:
    """V, the sum of |Q_t - Q_{t-1}|_1 over the steps 1 to T."""
    return float(np.abs(np.diff(self.distributions, axis=0)).sum())


def draw_stream(
  problem: Problem,
  omega: np.ndarray,
  target: np.ndarray,
  num_examples: int,
  seed: partition.Seed,
) -> Stream:
  """Draws a client's examples from a drifting label distribution.

  Args:
    problem: The problem.
    omega: The weight of `target` at the steps 0 to T, [T + 1] in [0, 1].
    target: Q_T, [num_classes]; Q_0 is uniform (eq. 1).
    num_examples: Number of examples in each of the steps 1 to T.
    seed: Seed of the examples.

  Returns:
    The stream. A class is drawn from Q_t, and one of its examples uniformly.

  Raises:
    ValueError: If `omega` or `target` are not valid, `num_examples` is below 1,
      or the seed is not made of non-negative integers.
  """
  partition.check_positive_integer("num_examples", num_examples)
  omega = examples_lib.checked_array(
    omega, "omega", shape=(None,), dtype=np.float64
  )
  if len(omega) < 2 or omega.min() < 0 or omega.max() > 1:
    raise ValueError(
      "omega must have weights from 0 to 1 of the steps 0 to T, at least two,"
      f" got {omega.tolist()}"
    )
  target = examples_lib.checked_array(
    target, "target", shape=(problem.num_classes,), dtype=np.float64
  )
  if target.min() < 0 or not np.isclose(target.sum(), 1):
    raise ValueError(
      f"target must be a label distribution, got {target.tolist()}"
    )
  weights = omega[:, None]
  distributions = (1 - weights) / problem.num_classes + weights * target
  rng = partition.generator("stream of the convex problem", seed)
  shape = (len(omega) - 1, num_examples)
  cumulative = np.cumsum(distributions[1:], axis=1)
  # Without the last entry, whose rounding error could be below a draw.
  classes = np.sum(
    rng.random(shape)[..., None] >= cumulative[:, None, :-1], axis=-1
  )
  members = rng.integers(_CLASS_SIZE, size=shape)
  examples = classes * _CLASS_SIZE + members
  return Stream(distributions, examples.astype(np.int32))


def bound(cumulative_shift: float, num_timesteps: int) -> float:
  """Computes max(V^(1/3) T^(2/3), sqrt(T)), the bound of E.2 for all V.

  Args:
    cumulative_shift: V.
    num_timesteps: T.

  Returns:
    The bound, up to its constant.

  Raises:
    ValueError: If V is negative, or T is below 1.
  """
  cumulative_shift = arguments.number(
    "cumulative_shift", cumulative_shift, "at least 0", lambda value: value >= 0
  )
  num_timesteps = arguments.integer("num_timesteps", num_timesteps)
  return max(
    cumulative_shift ** (1 / 3) * num_timesteps ** (2 / 3),
    num_timesteps**0.5,
  )


class Adaptation(NamedTuple):
  """The clients' adaptation to streams of T steps.

  Attributes:
    theta: The parameters before each step, [num_streams, T, *shape].
    signals: S (eq. 10), [num_streams, T].
    learning_rates: eta (eq. 9), [num_streams, T].
  """

  theta: np.ndarray
  signals: np.ndarray
  learning_rates: np.ndarray


def build(
  problem: Problem, ratio: float
) -> Callable[[Sequence[Stream], Sequence[float]], Adaptation]:
  """Builds the adaptation of a client to a stream.

  The client starts from the optimum for Q_0, from whose predictions BBSE
  estimates Q_t. It compares the summaries of a batch (eq. 11 and 13) with those
  of the previous batch, or of the problem's examples for the first batch. It
  takes one step on the risk of eq. 4 at the rate of eq. 9, projected onto the
  ball.

  Args:
    problem: The problem.
    ratio: eta_min / eta_max, from 0 to 1; 1 makes the rate constant.

  Returns:
    A function of streams of equal size and of eta_max for each of them. It
    raises a ValueError if the sizes differ.

  Raises:
    ValueError: If `ratio` is not from 0 to 1.
  """
  if not (arguments.is_number(ratio) and 0 <= ratio <= 1):
    raise ValueError(f"ratio must be from 0 to 1, got {ratio}")
  inputs = tf.constant(problem.inputs, tf.float32)
  embeddings = tf.constant(problem.embeddings, tf.float32)
  y = tf.constant(problem.y)
  pretrained = tf.constant(problem.pretrained)
  confusion = bbse.confusion_matrix(inputs @ pretrained, y)
  first_direction = dynamics.mean_direction(embeddings)  # z of t = 0.
  first_probabilities = dynamics.mean_probabilities(inputs @ pretrained)

  @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
  def observe(examples):
    """Computes the parts that do not depend on theta: estimated Q_t, S_rep."""
    estimates, directions = tf.vectorized_map(
      lambda batch: (
        bbse.estimate(
          bbse.prediction_distribution(tf.gather(inputs, batch) @ pretrained),
          confusion,
        ),
        dynamics.mean_direction(tf.gather(embeddings, batch)),
      ),
      examples,
    )
    previous = tf.concat([first_direction[None], directions[:-1]], axis=0)
    return estimates, tf.vectorized_map(
      lambda pair: dynamics.representation_dynamics(*pair),
      (previous, directions),
    )

  def step(arguments):
    state, (batch, estimate, representation), eta_max = arguments
    theta, previous = state[:2]
    probabilities = dynamics.mean_probabilities(
      tf.gather(inputs, batch) @ theta
    )
    signal = dynamics.combine(
      dynamics.uncertainty_dynamics(previous, probabilities), representation
    )
    # Eq. 9 in units of eta_max, which differs between streams.
    rate = eta_max * dynamics.learning_rate(signal, ratio, 1.0)
    with tf.GradientTape() as tape:
      tape.watch(theta)
      risk = adaptation.risk(
        inputs @ theta, y, adaptation.class_weights(estimate, y)
      ) + problem.weight_decay / 2 * tf.reduce_sum(theta**2)  # Eq. 4.
    theta -= rate * tape.gradient(risk, theta)  # Eq. 6.
    theta = tf.clip_by_norm(theta, problem.radius)
    return theta, probabilities, signal, rate

  # Compiled by XLA: calling the operations of this small step takes longer.
  @tf.function(
    jit_compile=True,
    input_signature=[
      (
        tf.TensorSpec([None, None, None], tf.int32),
        tf.TensorSpec([None, None, problem.num_classes], tf.float32),
        tf.TensorSpec([None, None], tf.float32),
      ),
      tf.TensorSpec([None], tf.float32),
    ],
  )
  def run(observed, eta_max):
    num_streams = tf.shape(eta_max)[0]
    initial = (
      tf.repeat(pretrained[None], num_streams, axis=0),
      tf.repeat(first_probabilities[None], num_streams, axis=0),
      tf.zeros_like(eta_max),
      eta_max,
    )
    theta, _, signals, rates = tf.scan(
      lambda state, element: tf.vectorized_map(step, (state, element, eta_max)),
      observed,
      initial,
    )
    # theta_t is the result of the previous step.
    return tf.concat([initial[0][None], theta[:-1]], axis=0), signals, rates

  def adapt(streams, eta_max):
    num_streams = arguments.sequence("streams", streams, what="stream")
    arguments.sequence("eta_max", eta_max, num_streams, "stream")
    eta_max = [
      arguments.number("eta_max", each, "at least 0", lambda value: value >= 0)
      for each in eta_max
    ]
    shapes = {stream.examples.shape for stream in streams}
    if len(shapes) > 1:
      raise ValueError(
        "streams must have equal numbers of steps and examples, got"
        f" {sorted(shapes)}"
      )
    observed = [
      (stream.examples, *observe(stream.examples)) for stream in streams
    ]
    # Time is the first axis in a scan.
    by_step = tuple(
      tf.stack(parts, axis=1) for parts in zip(*observed, strict=True)
    )
    results = run(by_step, tf.constant(eta_max, tf.float32))
    return Adaptation(*(np.moveaxis(each.numpy(), 0, 1) for each in results))

  return adapt


def regrets(
  problem: Problem,
  theta: np.ndarray,
  distributions: np.ndarray,
  optimal_risks: np.ndarray,
) -> np.ndarray:
  """Computes F^t(theta_t) - min F^t of each step; their sum is Reg_T.

  Args:
    problem: The problem.
    theta: theta_t, [T, *shape].
    distributions: Q_t, [T, num_classes].
    optimal_risks: min F^t, [T].

  Returns:
    [T], not negative, up to the error of the optima.

  Raises:
    ValueError: If the numbers of steps differ.
  """
  num_steps = arguments.sequence("theta", theta, what="step")
  arguments.sequence("distributions", distributions, num_steps, "step")
  arguments.sequence("optimal_risks", optimal_risks, num_steps, "step")
  risks = problem.class_risks(np.asarray(theta, np.float64))
  return np.sum(distributions * risks, axis=-1) - optimal_risks
