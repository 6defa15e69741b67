"""Measures how the dynamic regret of Fed-ADE grows with the number of steps.

  python -m experiments.dynamic_regret --output_dir=runs/dynamic_regret

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

The problem is convex and its optima are known. For each schedule of the shift,
Fed-ADE runs with learning-rate bounds [eta* / 2, 10 eta*], which contain
eta* = 3 (V / T)^(1/3), as required in section 5.2 of the paper. Their ratio of
20 is the ratio of the paper's bounds for images. V is the true cumulative
shift, sum_t |Q_t - Q_{t-1}|_1. The baselines are three constant rates, the same
for all T. Q_T is the mean of a sample from Dirichlet(0.1) and the uniform
distribution. Then the estimate of Q_t is rarely clipped to the simplex, and the
estimated risk is almost unbiased, as the theorem assumes (Lemma 5).

The bound on the regret is V^(1/3) T^(2/3) (eq. 18). It is measured in two ways:

- total_shift=fixed: the schedule of the smallest T, slowed down by repeating
  each of its steps. V is the same for all T, and the bound grows as T^(2/3).
- total_shift=growing: the schedule as defined for each T. All schedules except
  the linear one shift about sqrt(T) times, so the bound grows as T^(5/6).

The table shows the exponents of regret and bound, fitted per seed to logarithms
over log(T). The other columns are for the largest T. Values after +- are
standard deviations over seeds.

Writes config.json, metrics.csv, summary.json and figures/ to --output_dir.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import pandas as pd
from absl import flags
from matplotlib import ticker
from scipy import optimize
from scipy import special

from tff_shift._util import shown_names
from tff_shift.command_line import common_flags
from tff_shift.command_line import configuration
from tff_shift.command_line import output_folder
from tff_shift.command_line import program
from tff_shift.data import partition
from tff_shift.data.shifts import schedules
from tff_shift.reporting import summary
from tff_shift.reporting.figures import drawing
from tff_shift.simulation.storage import results

FLAGS = flags.FLAGS

# Classes overlap such that four of five examples are classified correctly.
_NUM_CLASSES, _EMBEDDING_SIZE, _CLASS_SIZE, _SPREAD = 5, 8, 40, 0.5

# The ratio over which the lines at a point are spread on a logarithmic axis.
_DODGE = 1.1
_REFERENCE_DASHES = ("--", ":", "-.")

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
    """Draws the examples, Gaussian around a unit vector for each class."""
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
  """
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
  """
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
    A function of streams of equal size and of eta_max for each of them.
  """
  # After the flag checks: TensorFlow takes seconds.
  import tensorflow as tf

  from tff_shift.algorithms.parts import adaptation
  from tff_shift.shift import bbse
  from tff_shift.shift import dynamics

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

  def step(given):
    state, (batch, estimate, representation), eta_max = given
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
  """
  risks = problem.class_risks(np.asarray(theta, np.float64))
  return np.sum(distributions * risks, axis=-1) - optimal_risks


def _timesteps(texts: Sequence[str]) -> tuple[int, ...]:
  numbers = tuple(map(int, texts))
  # The regret of a single step can be 0, which has no logarithm.
  if (
    len(set(numbers)) < max(len(numbers), 2)
    or min(numbers) < 2
    or any(each % min(numbers) for each in numbers)
  ):
    raise ValueError(texts)
  return numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  """The flags of this binary."""

  seeds: tuple[int, ...] = configuration.seeds(
    (0, 1, 2, 3, 4),
    "Comma-separated seeds of the streams and of their final distributions.",
  )
  # Squares of even numbers: the schedules have whole phases.
  timesteps: tuple[int, ...] = configuration.setting(
    (100, 400, 900, 1600, 3600),
    "Comma-separated numbers of time steps (T), multiples of the smallest.",
    convert=_timesteps,
    requirement="two or more integers of at least 2, no duplicates, all"
    " multiples of the smallest",
  )
  output_dir: str | None = configuration.setting(
    None, "Folder of the results. Default: runs/dynamic_regret-<date>-<time>."
  )
  overwrite: bool = configuration.setting(
    False, "Replaces an earlier run in --output_dir."
  )


_FED_ADE = "fed_ade"
_FIXED_RATES = {"fix_low": 0.03, "fix_mid": 0.3, "fix_high": 3.0}
# eta* = 3 (V / T)^(1/3). The theorem leaves the constant open; with 1, learning
# rates are too low to follow the growing schedules at the default T.
_RATE_SCALE = 3.0
_ETA_MIN, _ETA_MAX = 0.5, 10.0  # In units of eta*.
_SAMPLES_PER_STEP = 50
_DIRICHLET = 0.1
_UNIFORM_SHARE = 0.5
_TOTAL_SHIFTS = ("fixed", "growing")
_SETTING = ["total_shift", "shift"]


def _cases(
  problem: Problem, seeds: Sequence[int], timesteps: Sequence[int]
) -> list[tuple[dict[str, Any], Stream]]:
  """Draws a stream in each setting, for each seed and number of steps."""
  cases = []
  for total_shift, shift, seed, num_steps in itertools.product(
    _TOTAL_SHIFTS, schedules.names(), seeds, timesteps
  ):
    [drawn] = partition.dirichlet_proportions(
      1, problem.num_classes, _DIRICHLET, seed
    )
    uniform = 1 / problem.num_classes
    length = num_steps if total_shift == "growing" else min(timesteps)
    first, *others = schedules.omega(shift, length, seed=seed)
    stream = draw_stream(
      problem,
      np.array([first, *np.repeat(others, num_steps // length)]),
      _UNIFORM_SHARE * uniform + (1 - _UNIFORM_SHARE) * drawn,
      _SAMPLES_PER_STEP,
      (seed, num_steps),
    )
    setting = {"total_shift": total_shift, "shift": shift}
    cases.append((setting | {"seed": seed, "timesteps": num_steps}, stream))
  return cases


def _largest_rate(algorithm: str, stream: Stream) -> float:
  """Returns eta_max, or the rate itself if it is constant."""
  if algorithm in _FIXED_RATES:
    return _FIXED_RATES[algorithm]
  # (V / T)^(1/3), or 1 / sqrt(T) if that is larger.
  num_steps = len(stream.examples)
  optimal = bound(stream.cumulative_shift, num_steps)
  return _ETA_MAX * _RATE_SCALE * optimal / num_steps


def _rows(problem, cases, optimal_risks, algorithm, adapt):
  """Yields the rows of metrics.csv of an algorithm."""
  # All streams of one length in one call.
  for num_steps in dict.fromkeys(where["timesteps"] for where, _ in cases):
    chosen = [
      (where, stream, risks)
      for (where, stream), risks in zip(cases, optimal_risks, strict=True)
      if where["timesteps"] == num_steps
    ]
    adaptation = adapt(
      [stream for _, stream, _ in chosen],
      [_largest_rate(algorithm, stream) for _, stream, _ in chosen],
    )
    for index, (where, stream, risks) in enumerate(chosen):
      by_step = regrets(
        problem, adaptation.theta[index], stream.distributions[1:], risks
      )
      yield {
        "algorithm": algorithm,
        **where,
        "regret": float(by_step.sum()),
        "cumulative_shift": stream.cumulative_shift,
        "measured_shift": float(adaptation.signals[index].sum()),
        "mean_learning_rate": float(adaptation.learning_rates[index].mean()),
      }


def _exponent(rows: pd.DataFrame, name: str) -> float:
  """Fits a column to T^p by least squares of logarithms and returns p."""
  fit = np.polyfit(np.log(rows["timesteps"]), np.log(rows[name]), 1)
  # Rounded, so that equal exponents have standard deviation 0.
  return round(fit[0], 6)


def _summarize(
  frame: pd.DataFrame, setting: Mapping[str, str], seconds_per_round: float
) -> summary.RunSummary:
  """Returns the entry of summary.json for an algorithm in a setting."""
  metrics_by_seed = {
    int(seed): {
      "regret_exponent": _exponent(rows, "regret"),
      "bound_exponent": _exponent(rows, "bound"),
      **rows[["regret", "cumulative_shift", "measured_shift"]]
      .iloc[-1]
      .to_dict(),
    }
    for seed, rows in frame.groupby("seed", sort=False)
  }
  return summary.RunSummary(
    algorithm=frame["algorithm"].iloc[0],
    dataset="convex",
    setting=setting,
    metrics_by_seed=metrics_by_seed,
    rounds=int(frame["timesteps"].max()),
    directions={"regret": False, "regret_exponent": False},
    seconds_per_round=seconds_per_round,
  )


def _draw(frame: pd.DataFrame, folder: results.RunFolder) -> None:
  """Plots regret over T: Fed-ADE on all schedules, and all on each."""
  x = frame["timesteps"].unique()

  def draw(parts, series_of, references):
    series = {
      label: rows.pivot(
        index="seed", columns="timesteps", values="regret"
      ).to_numpy()
      for label, rows in series_of.groupby(parts[-1], sort=False)
    }
    # References start at the first value of the first curve.
    first = next(iter(series.values())).mean(axis=0)[0]
    lines_with_slopes(
      x,
      series,
      {name: first * line / line[0] for name, line in references.items()},
      folder.figure_path("regret", *parts[:-1]),
      xlabel="Time steps T",
      ylabel="Dynamic regret",
    )

  powers = {"T^(2/3)": x ** (2 / 3), "T^(5/6)": x ** (5 / 6)}
  fed_ade = frame[frame["algorithm"] == _FED_ADE]
  for total_shift, rows in fed_ade.groupby("total_shift"):
    draw((total_shift, "shift"), rows, powers)
  for setting, rows in frame.groupby(_SETTING, sort=False):
    # The bound is the same for all algorithms.
    bounds = rows.groupby("timesteps")["bound"].mean()
    references = {"V^(1/3) T^(2/3)": bounds.to_numpy()}
    draw((*setting, "algorithm"), rows, references)


def lines_with_slopes(
  x: np.ndarray,
  series: Mapping[str, np.ndarray],
  references: Mapping[str, np.ndarray],
  path: drawing.Path,
  *,
  xlabel: str,
  ylabel: str,
) -> drawing.Path:
  """Plots measured growth and reference lines on logarithmic axes.

  A power of x is a straight line, whose slope is the exponent.

  Args:
    x: `[points]` positive values, in order.
    series: For each label, `[seeds, points]` positive values; NaN leaves a gap.
    references: For each label, `[points]` positive values, drawn dashed and
      without markers.
    path: The PNG file; the PDF file is written next to it.
    xlabel: Name and unit of `x`.
    ylabel: Name and unit of the values.

  Returns:
    `path`.
  """
  figure, axes = drawing.new_figure("", xlabel, ylabel)
  axes.set(xscale="log", yscale="log")
  for index, (name, by_seed) in enumerate(series.items()):
    style = drawing.line_style(index)
    # Next to each other, so that error bars do not overlap.
    offset = (index + 0.5) / len(series) - 0.5 if len(by_seed) > 1 else 0.0
    beside = np.asarray(x) * _DODGE**offset
    axes.plot(
      beside, np.mean(by_seed, axis=0), label=drawing.label(name), **style
    )
    drawing.draw_error_bars(axes, beside, by_seed, style["color"])
  for index, (name, values) in enumerate(references.items()):
    dashes = _REFERENCE_DASHES[index % len(_REFERENCE_DASHES)]
    axes.plot(
      x,
      values,
      label=drawing.label(name),
      color=drawing.GREY,
      linestyle=dashes,
      linewidth=1.4,
    )
  # Error bars would move the lower limits of logarithmic axes far down.
  shown = [np.ravel(values) for values in references.values()]
  for by_seed in series.values():
    mean, spread = drawing.mean_and_spread(by_seed)
    shown += [mean] if spread is None else [mean - spread, mean, mean + spread]
  heights = np.concatenate(shown)
  for limit, values in ((axes.set_xlim, x), (axes.set_ylim, heights)):
    positive = np.asarray(values)[np.greater(values, 0)]
    low, high = positive.min(), positive.max()
    margin = max(_DODGE, (high / low) ** 0.05)
    limit(low / margin, high * margin)
  for axis in (axes.xaxis, axes.yaxis):
    # An axis of one decade would have no labels with powers of ten only.
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_locator(ticker.NullLocator())
  drawing.add_legend(figure)
  return drawing.save(figure, path)


def measure(seeds: Sequence[int], timesteps: Sequence[int]) -> None:
  """Runs the measurement.

  Raises:
    UsageError: If the folder cannot be used.
  """
  with (
    common_flags.usage_errors(),
    output_folder.unwritable_refused("output_dir"),
  ):
    folder = results.RunFolder.create(
      common_flags.output_dir("dynamic_regret"), overwrite=FLAGS.overwrite
    )
    with folder.beginning():
      folder.not_compared = ("output_dir", "overwrite")
      names = ("seeds", "timesteps", "output_dir", "overwrite")
      folder.write_config({name: FLAGS[name].value for name in names})
  problem = Problem()
  cases = _cases(problem, seeds, timesteps)
  # In one call: the streams of a seed share many distributions.
  distributions = [stream.distributions[1:] for _, stream in cases]
  ends = np.cumsum(list(map(len, distributions)))
  optimal_risks = np.split(
    problem.optimal_risks(np.concatenate(distributions)), ends[:-1]
  )
  # The constant rates share one build, which takes seconds.
  building = functools.cache(functools.partial(build, problem))
  frames, summaries = [], []
  for algorithm in (_FED_ADE, *_FIXED_RATES):
    start = time.perf_counter()
    ratio = 1.0 if algorithm in _FIXED_RATES else _ETA_MIN / _ETA_MAX
    rows = []
    for row in _rows(problem, cases, optimal_risks, algorithm, building(ratio)):
      folder.write_metrics(row)
      rows.append(row)
    seconds = time.perf_counter() - start
    frame = pd.DataFrame(rows).sort_values("timesteps", kind="stable")
    frame["bound"] = list(
      map(bound, frame["cumulative_shift"], frame["timesteps"])
    )
    frames.append(frame)
    per_round = seconds / frame["timesteps"].sum()
    summaries += [
      _summarize(rows, dict(zip(_SETTING, values, strict=True)), per_round)
      for values, rows in frame.groupby(_SETTING, sort=False)
    ]
    folder.write_summary(each.to_record() for each in summaries)
  _draw(pd.concat(frames, ignore_index=True), folder)
  settings = [run.setting for run in summaries]
  table = summary.comparison_table(
    sorted(summaries, key=lambda run: settings.index(run.setting)),
    metrics=(
      "regret_exponent",
      "bound_exponent",
      "regret",
      "cumulative_shift",
      "measured_shift",
    ),
  )
  print(table)
  print(shown_names.printable(f"results: {folder.path}"))


def define_flags() -> None:
  """Defines the flags of this binary."""
  configuration.define(Configuration)


def main() -> None:
  """Runs the measurement that the flags define."""
  with common_flags.usage_errors():
    chosen = configuration.chosen(Configuration)
  measure(chosen.seeds, chosen.timesteps)


def run() -> None:
  """Runs this binary with the command line and ends the process."""
  program.run(main, define_flags)


if __name__ == "__main__":
  run()
