"""PriorCorrection: predictions corrected for the estimated label distribution.

Adjusting the Outputs of a Classifier to New a Priori Probabilities: A Simple
Procedure (Saerens, Latinne, Decaestecker; Neural Computation 2002,
doi:10.1162/089976602753284446). Online Label Shift: Optimal Dynamic Regret
meets Practical Algorithms (Baby, Garg, Yen, Balakrishnan, Lipton, Wang; NeurIPS
2023, arXiv:2305.19570) has the memory FLH-FTL. Online Adaptation to Label
Distribution Shift (Wu, Guo, Su, Weinberger; NeurIPS 2021, arXiv:2107.04520) has
the memory of FTH.

The model does not change after training. Under label shift, a model that was
trained with the label distribution pi predicts

    logits + log(q / pi),

where q is the label distribution of the stream. At each time step t a client
estimates q_t from its batch: by BBSE (Detecting and Correcting for Label Shift
with Black Box Predictors; Lipton, Wang, Smola; ICML 2018) or by expectation
maximisation (Saerens et al.). A memory turns q_1 .. q_t into the q of the
correction:

  * none: the last estimate.
  * history: the mean of all estimates, as FTH.
  * window: the mean of the last estimates.
  * flh_ftl: expert j predicts E_j, the mean of q_j .. q_t, and q = sum_j v_j
    E_j. When q_t comes, n experts get the weights v_j exp(-a |E_j - q_t|^2),
    normalised, times n / (n + 1). The new expert t gets 1 / (n + 1).

What leaves a client: the mean risk on its labelled data. Its estimates stay.

Published reading: FTH and FLH-FTL predict a batch with the estimates of earlier
batches (`scored=before`); a correction without memory estimates q from the
batch that it corrects (`after`). `scored=published` is the one of the memory.

Choices:
  * The program of ATP (Bao, Wei, Wang, He; NeurIPS 2023), which has BBSE and EM
    as baselines, takes 2 passes of EM, and adds 0.001 to the probability of
    each class (`smoothing`).
  * pi is uniform, as in Fed-ADE and ATP; `prior=labelled` takes the fractions
    of the client's labelled examples, with one example added to each class.
  * EM needs calibrated probabilities; FLH-FTL's program scales by a temperature
    from held-out data. `calibration=temperature` fits it to the client's
    labelled examples, between 1/16 and 16.
  * A full FLH-FTL replaces the expert of smallest weight. The authors' program
    pairs weights with the wrong experts; this is the algorithm of the text.
  * More passes of EM than two let a batch whose predictions favour one class
    exclude the others (`em_passes`).
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import label_priors
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.learning.aggregators import factories
from tff_shift.models import split_model
from tff_shift.shift import expectation_maximization

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED

AGGREGATION_REQUIREMENTS = factories.AggregationRequirements(
  no_aggregation="the model does not change after training"
)

# The search for the temperature halves its range, from 1/16 to 16, so often.
_LARGEST_SCALE = 16.0
_NUM_HALVINGS = 30


@dataclasses.dataclass(frozen=True)
class HParams(adaptation.ScoredHParams, adaptation.LabelShiftHParams):
  """Hyper-parameters of the correction, beside those of BBSE."""

  estimator: str = hyperparameters.hparam(
    "bbse",
    "The estimate of a batch's label distribution: bbse, from the confusion"
    " matrix of the pre-trained model; em, by expectation maximisation.",
    choices=("bbse", "em"),
  )
  em_passes: int = hyperparameters.hparam(
    2,
    "Passes of em; 1: the mean softmax; many: the maximum of the likelihood,"
    " which may exclude classes.",
    minimum=1,
  )
  memory: str = hyperparameters.hparam(
    "flh_ftl",
    "What the correction remembers: none, the last estimate; history, the mean"
    " of all (FTH); window, the mean of the last ones; flh_ftl, experts that"
    " start at different time steps.",
    choices=("none", "history", "window", "flh_ftl"),
  )
  window: int = hyperparameters.hparam(
    5,
    "The number of estimates in the mean of memory=window; 1: none; as many as"
    " time steps: history.",
    minimum=1,
  )
  expert_rate: float = hyperparameters.hparam(
    1.0,
    "For flh_ftl: how fast an expert's weight decreases with its error, a ="
    " expert_rate / number of classes; 0: errors do not count.",
    minimum=0,
  )
  max_experts: int = hyperparameters.hparam(
    100,
    "For flh_ftl: the number of experts that a client keeps; as many as time"
    " steps: all.",
    minimum=1,
  )
  smoothing: float = hyperparameters.hparam(
    0.0,
    "Added to the estimated probability of each class before the correction; 0:"
    " none, and a class that is not estimated is hardly ever predicted.",
    minimum=0,
  )
  prior: str = hyperparameters.hparam(
    "uniform",
    "pi, the label distribution of training: uniform; labelled, that of the"
    " client's labelled examples.",
    choices=("uniform", "labelled"),
  )
  calibration: str = hyperparameters.hparam(
    "none",
    "Calibration of the model: none; temperature, logits are scaled to minimise"
    " the cross-entropy on the client's labelled examples.",
    choices=("none", "temperature"),
  )
  scored: str = hyperparameters.hparam(
    "published",
    "Which predictions for the batch of a time step count as the method's:"
    " before, with the estimates of earlier batches; after, with that of this"
    " batch too; published: after for memory=none, otherwise before.",
    choices=("published", "before", "after"),
  )

  def check_together(self) -> None:
    """Refuses hyper-parameters that the chosen estimate or memory ignores."""
    super().check_together()
    hyperparameters.refuse_ignored(self, "em_passes", "estimator", "em")
    hyperparameters.refuse_ignored(self, "window", "memory", "window")
    for field in ("expert_rate", "max_experts"):
      hyperparameters.refuse_ignored(self, field, "memory", "flh_ftl")

  @property
  def is_scored_before(self) -> bool:
    """Whether the predictions of before a batch's own estimate count."""
    if self.scored == "published":
      return self.memory != "none"
    return self.scored == "before"


class History(NamedTuple):
  """The mean of all estimates.

  Attributes:
    total: Their sum, [num_classes] float32.
    count: Their number, a float32 scalar.
  """

  total: Any
  count: Any

  def add(self, classes) -> "History":
    """Returns the memory with one more estimate."""
    return History(self.total + classes, self.count + 1.0)

  def mean(self) -> tf.Tensor:
    """Returns q of the correction; zeros without estimates."""
    return tf.math.divide_no_nan(self.total, self.count)


class Window(NamedTuple):
  """The mean of the last estimates.

  Attributes:
    estimates: A ring of estimates, [window, num_classes] float32; zeros for
      missing ones.
    count: The number of estimates so far, a float32 scalar.
  """

  estimates: Any
  count: Any

  def add(self, classes) -> "Window":
    """Returns the memory with one more estimate, in place of the oldest."""
    size = self.estimates.shape[0]
    place = tf.cast(self.count, tf.int32) % size
    return Window(
      tf.tensor_scatter_nd_update(self.estimates, [[place]], [classes]),
      self.count + 1.0,
    )

  def mean(self) -> tf.Tensor:
    """Returns q of the correction; zeros without estimates."""
    size = float(self.estimates.shape[0])
    return tf.math.divide_no_nan(
      tf.reduce_sum(self.estimates, axis=0), tf.minimum(self.count, size)
    )


class Experts(NamedTuple):
  """The experts of FLH-FTL.

  Attributes:
    totals: The sums of each expert's estimates, [max_experts, num_classes]
      float32; zeros for missing experts.
    counts: The number of estimates of each expert, [max_experts] float32.
    weights: v, [max_experts] float32; the sum is 1.
  """

  totals: Any
  counts: Any
  weights: Any

  def add(self, classes, rate: float) -> "Experts":
    """Returns the experts after an estimate.

    Args:
      classes: q_t, [num_classes] float32.
      rate: a.
    """
    is_there = tf.cast(self.counts > 0, tf.float32)
    number = tf.reduce_sum(is_there)
    errors = tf.reduce_sum(
      tf.math.squared_difference(self._predictions(), classes), axis=1
    )
    # Errors count relative to the smallest one, so that no sum becomes 0.
    smallest = tf.reduce_min(tf.where(self.counts > 0, errors, tf.float32.max))
    weights = self.weights * tf.exp(-rate * tf.nn.relu(errors - smallest))
    weights = tf.math.divide_no_nan(weights, tf.reduce_sum(weights))
    # Missing experts have weight 0 and come first, in order.
    place = [[tf.argmin(tf.where(self.counts > 0, weights, -1.0))]]
    share = 1.0 / (number + 1.0)
    weights = tf.tensor_scatter_nd_update(
      weights * number * share, place, [share]
    )
    return Experts(
      tf.tensor_scatter_nd_update(
        self.totals + is_there[:, tf.newaxis] * classes, place, [classes]
      ),
      tf.tensor_scatter_nd_update(self.counts + is_there, place, [1.0]),
      # The sum is below 1 if an expert was replaced.
      weights / tf.reduce_sum(weights),
    )

  def mean(self) -> tf.Tensor:
    """Returns q of the correction; zeros without experts."""
    return tf.linalg.matvec(self._predictions(), self.weights, transpose_a=True)

  def _predictions(self) -> tf.Tensor:
    """Returns E, [max_experts, num_classes]."""
    return tf.math.divide_no_nan(self.totals, self.counts[:, tf.newaxis])


class ClientState(NamedTuple):
  """A client's state.

  Attributes:
    memory: Its estimates: a `History`, a `Window` or `Experts`.
    timestep: The time step of the last one, an int32 scalar; 0: none yet.
    prior: pi, [num_classes] float32; () if it is uniform.
    scale: 1 / temperature, a float32 scalar; () without calibration.
  """

  memory: Any
  timestep: Any
  prior: Any
  scale: Any

  @property
  def classes(self) -> tf.Tensor:
    """q, before smoothing; zeros before the first time step."""
    return self.memory.mean()


def labelled_prior(y, num_classes: int) -> tf.Tensor:
  """Returns the fractions of classes, with one example added to each."""
  counts = tf.reduce_sum(tf.one_hot(y, num_classes), axis=0) + 1.0
  return counts / tf.reduce_sum(counts)


def fit_scale(logits, y) -> tf.Tensor:
  """Fits the factor of logits that minimises the cross-entropy.

  The cross-entropy is convex in the factor s, with the derivative: mean of
  sum_c p_c(s) (z_c - z_y). Its zero is found by bisection in log s.

  Args:
    logits: z, [num_examples, num_classes] float32.
    y: The classes, [num_examples] int32.

  Returns:
    s, a float32 scalar between 1/16 and 16; 1 without examples.
  """
  margins = logits - tf.gather(logits, y, batch_dims=1)[:, tf.newaxis]

  def halve(number, low, high):
    middle = 0.5 * (low + high)
    slope = tf.reduce_sum(tf.nn.softmax(tf.exp(middle) * logits) * margins)
    return (
      number + 1,
      tf.where(slope < 0, middle, low),
      tf.where(slope < 0, high, middle),
    )

  limit = tf.math.log(_LARGEST_SCALE)
  _, low, high = tf.while_loop(
    lambda number, *_: number < _NUM_HALVINGS,
    halve,
    (tf.constant(0), -limit, limit),
    parallel_iterations=1,
  )
  return tf.where(tf.size(y) > 0, tf.exp(0.5 * (low + high)), 1.0)


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of the correction; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  its `ClientState`; nothing is shared.
  """
  num_classes = model.num_classes
  uniform = 1.0 / num_classes
  has_prior = hparams.prior == "labelled"
  is_calibrated = hparams.calibration == "temperature"

  def initial_memory():
    if hparams.memory == "history":
      return History(tf.zeros([num_classes]), tf.constant(0.0))
    if hparams.memory == "flh_ftl":
      number = hparams.max_experts
      return Experts(
        tf.zeros([number, num_classes]), tf.zeros([number]), tf.zeros([number])
      )
    size = 1 if hparams.memory == "none" else hparams.window
    return Window(tf.zeros([size, num_classes]), tf.constant(0.0))

  def add(memory, classes):
    if hparams.memory == "flh_ftl":
      return memory.add(classes, hparams.expert_rate / num_classes)
    return memory.add(classes)

  def predict(state, weights, x):
    """Returns the model's logits, calibrated."""
    logits = evaluation.predict(model, weights, x)
    return state.scale * logits if is_calibrated else logits

  def correct(state, logits):
    prior = state.prior if has_prior else uniform
    classes = state.classes
    if hparams.smoothing:
      classes = (classes + hparams.smoothing) / (
        1.0 + num_classes * hparams.smoothing
      )
    # Without an estimate, the prior.
    classes = tf.where(tf.equal(state.timestep, 0), prior, classes)
    return label_priors.correct(logits, classes, prior)

  def estimate(state, weights, data):
    """Returns q_t."""
    if hparams.estimator == "bbse":
      return adaptation.estimate_classes(model, hparams, weights, data)
    return expectation_maximization.estimate(
      predict(state, weights, data.stream_x),
      state.prior if has_prior else tf.fill([num_classes], uniform),
      hparams.em_passes,
    )

  def prepare(state, weights, data):
    """Sets prior and calibration from the labelled examples."""
    if has_prior:
      state = state._replace(prior=labelled_prior(data.y, num_classes))
    if is_calibrated:
      logits = evaluation.predict(model, weights, data.x)
      state = state._replace(scale=fit_scale(logits, data.y))
    return state

  def train_client(nothing, state, data, round_num):
    del nothing, round_num
    weights = model.initial_weights(data.seed)
    prepared = prepare(state, weights, data)
    classes = estimate(prepared, weights, data)
    new = prepared._replace(
      memory=add(prepared.memory, classes), timestep=data.timestep
    )
    # Rounds of the same time step have the same data and count once.
    is_new = tf.not_equal(state.timestep, data.timestep) & (
      adaptation.num_stream_examples(data) > 0
    )
    state = tf.nest.map_structure(
      lambda now, old: tf.where(is_new, now, old), new, state
    )
    logits = correct(state, predict(state, weights, data.x))
    return algorithm.ClientResult(
      update=(),
      client_state=state,
      loss=adaptation.risk(
        logits, data.y, adaptation.class_weights(classes, data.y)
      ),
    )

  def predict_as_client(nothing, state, data, examples):
    del nothing
    weights = model.initial_weights(data.seed)
    return correct(state, predict(state, weights, examples.x))

  return algorithm.AlgorithmSpec(
    initial_weights=lambda seed: (),
    initial_client_state=lambda seed, weights: ClientState(
      initial_memory(),
      tf.constant(0),
      tf.fill([num_classes], uniform) if has_prior else (),
      tf.constant(1.0) if is_calibrated else (),
    ),
    train_client=train_client,
    predict_as_client=predict_as_client,
    examples_type=adaptation.data_type(model),
    num_examples=adaptation.num_stream_examples,
  )
