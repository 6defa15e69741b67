"""FedADE: adapts to a drifting stream at a rate set by the measured shift.

Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under Distribution
Shift (Park, Joe, Kim, Im, Kwon; CVPR 2026, arXiv:2603.01040), Algorithm 1.

A deployed model receives unlabelled data with a drifting distribution. At each
time step a client estimates the label distribution of its data and uses it to
weight the risk on its labelled data from before deployment (eq. 4). The changes
of the mean probabilities and of the mean embedding since the previous time step
(eq. 10 to 14) determine its learning rate (eq. 9). A round has two phases: the
client updates backbone and head (eq. 6) and the server averages the backbones
(eq. 7); then the client updates its head on the new, fixed backbone (eq. 8).

`variant=program` is the computation of the program that the authors released
(github.com/h2w1/Fed-ADE, commit ad36802), which is another method: see
`two_phase_adaptation` for its updates. Its signal compares the fractions of
predicted labels, in training mode, with those of the client's last round, and
the direction of the mean embedding with a moving mean. Each difference is a
hyper-parameter. Use it with a model that has batch normalisation and dropout,
such as `mini_resnet`. Beside it belong no adaptation (`source`), the same at
rate 0 (`eta_min=0`, `eta_max=0`), and the same at its mean rate (`--controls`):
moving statistics adapt a model by themselves. A table in BUILD_NOTES.md,
"Paper, program and tff_shift", compares the two and this package.

What leaves a client: the update of the backbone, the number of its unlabelled
examples, and the mean risk of both updates (program: the mean entropy, and an
update that no client receives). Head, summaries, label estimates, running
statistics and learning rate stay.

Choices:
  * Algorithm 1 caches q and z in every round, the text compares time steps. S
    is measured in the first round of a step in which a client takes part,
    relative to the last step in which it took part; the rate then holds for the
    step (`compare=rounds`).
  * At t = 1, S is relative to the summaries of the labelled data under the
    pre-trained model.
  * With a single estimator (Table 4) S is this estimator, not halved.
  * With `reference=ema`, several rounds of a client in a time step have several
    rates. Each trains at its own; the recorded one is their mean, which
    `--controls` preserve.
  * S is as printed. With 50 examples it is mostly the noise of a batch under
    slow drift: `correct_batch_noise`, see `shift.batch_noise`.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import two_phase_adaptation
from tff_shift.learning import algorithm
from tff_shift.learning import evaluation
from tff_shift.learning import hyperparameters
from tff_shift.models import modes
from tff_shift.models import split_model
from tff_shift.shift import batch_noise
from tff_shift.shift import dynamics
from tff_shift.shift import measures

SCENARIOS = ("online_adaptation",)

RUNNING_STATISTICS = algorithm.FIXED


@dataclasses.dataclass(frozen=True)
class HParams(two_phase_adaptation.TwoPhaseHParams):
  """Hyper-parameters of FedADE."""

  eta_min: float = hyperparameters.hparam(
    5e-6, "The learning rate without shift (eq. 9).", minimum=0
  )
  eta_max: float = hyperparameters.hparam(
    1e-4,
    "The learning rate at the largest shift (eq. 9); 0: no weight moves.",
    minimum=0,
  )
  use_uncertainty: bool = hyperparameters.hparam(
    True, "Whether S uses S_unc (eq. 12); without it S is S_rep alone."
  )
  use_representation: bool = hyperparameters.hparam(
    True, "Whether S uses S_rep (eq. 14); without it S is S_unc alone."
  )
  similarity: str = hyperparameters.hparam(
    "cosine",
    "The comparison of two summaries (Table 3).",
    choices=measures.names(),
  )
  summary: str = hyperparameters.switch_hparam(
    "The summary of a batch: softmax, the mean softmax and the mean of unit"
    " embeddings (eq. 11, 13); histogram, the fractions of predicted labels in"
    " training mode and the direction of the mean embedding",
    published="softmax",
    program="histogram",
  )
  reference: str = hyperparameters.switch_hparam(
    "What a summary is compared with: last, the summary chosen by compare; ema,"
    " in each round, the labels of the client's last round and a moving mean of"
    " its embeddings",
    published="last",
    program="ema",
  )
  reference_share: float = hyperparameters.hparam(
    0.1,
    "With reference=ema: the weight of a batch in the moving mean; 1: the last"
    " round.",
    minimum=0,
    exclusive_minimum=True,
    maximum=1,
  )
  compare: str = hyperparameters.hparam(
    "timesteps",
    "Which summaries are compared with reference=last: timesteps, of"
    " consecutive time steps in which the client took part; rounds, of"
    " consecutive rounds.",
    choices=("timesteps", "rounds"),
  )
  correct_batch_noise: bool = hyperparameters.hparam(
    False,
    "Whether to remove the sampling noise of small batches from S, estimated"
    " from the batches (ours, not the paper's; for the cosine).",
  )

  def check_together(self) -> None:
    """Refuses inconsistent values."""
    super().check_together()
    if self.eta_max < self.eta_min:
      raise ValueError(
        f"eta_max={self.eta_max} is not allowed: it must be at least"
        f" eta_min={self.eta_min}"
      )
    if not (self.use_uncertainty or self.use_representation):
      raise ValueError(
        "use_uncertainty=False is not allowed: it must be True where"
        " use_representation=False"
      )
    if self.correct_batch_noise and self.similarity != "cosine":
      raise ValueError(
        "correct_batch_noise=True is not allowed: it must be False where"
        f" similarity={self.similarity!r}"
      )
    has_moving_mean = hyperparameters.switch(self, "reference") == "ema"
    if has_moving_mean and self.compare == "rounds":
      raise ValueError(
        "compare=rounds is not allowed with reference=ema, which compares each"
        " round with its own reference"
      )
    if not has_moving_mean and hyperparameters.is_changed(
      self, "reference_share"
    ):
      raise ValueError(
        f"reference_share={self.reference_share} is not allowed without"
        " reference=ema, to whose moving mean it belongs"
      )
    has_other_signal = (
      has_moving_mean or hyperparameters.switch(self, "summary") != "softmax"
    )
    if self.correct_batch_noise and has_other_signal:
      raise ValueError(
        "correct_batch_noise=True is not allowed: it must be False unless"
        " summary=softmax and reference=last"
      )


class Summaries(NamedTuple):
  """A client's summary of a batch.

  Attributes:
    probabilities: q of eq. 11, or the fractions of predicted labels,
      [num_classes] float32.
    direction: z of eq. 13, or the direction of the mean embedding,
      [embedding_size] float32.
    noise: The noise of q and z, see `batch_noise`, [2] float32; empty without
      the correction.
  """

  probabilities: Any
  direction: Any
  noise: Any = ()


class Dynamics(NamedTuple):
  """A client's memory of its stream, for measuring the shift.

  Attributes:
    summaries: The summaries of the last time step with this client.
    uncertainty: The state of the measure of eq. 12; empty for the cosine.
    representation: The state of the measure of eq. 14; empty for the cosine.
    timestep: This time step, an int32 scalar; 0 before the first.
  """

  summaries: Summaries
  uncertainty: Any
  representation: Any
  timestep: Any


class MovingDynamics(NamedTuple):
  """A client's memory of its stream with `reference=ema`.

  Attributes:
    last: A `Dynamics`; the embeddings of its summaries are the moving mean.
    num_rounds: The client's number of rounds in its last time step, an int32
      scalar.
  """

  last: Dynamics
  num_rounds: Any


def summarize(
  model: split_model.SplitModel,
  weights: split_model.SplitWeights,
  x,
  with_noise: bool = False,
) -> Summaries:
  """Computes q (eq. 11) and z (eq. 13) of examples [n, ...]."""
  embeddings = adaptation.embed(model, weights.backbone, x)
  logits = model.classify(weights.head, embeddings)
  noise = ()
  if with_noise:
    noise = tf.stack(
      [
        batch_noise.noise_of_direction(tf.nn.softmax(logits)),
        batch_noise.noise_of_direction(dynamics.unit(embeddings)),
      ]
    )
  return Summaries(
    dynamics.mean_probabilities(logits),
    dynamics.mean_direction(embeddings),
    noise,
  )


def correct_signals(
  previous: Summaries, current: Summaries, uncertainty, representation
) -> tuple[tf.Tensor, tf.Tensor]:
  """Removes the noise of two batches from S_unc and S_rep.

  Args:
    previous: The summaries of the previous time step, with noise.
    current: The summaries of this time step, with noise.
    uncertainty: S_unc (eq. 12), a float32 scalar.
    representation: S_rep (eq. 14), a float32 scalar; half a cosine distance.

  Returns:
    Both, corrected; they may be negative.
  """
  return (
    batch_noise.correct(uncertainty, previous.noise[0], current.noise[0]),
    0.5
    * batch_noise.correct(
      2.0 * representation, previous.noise[1], current.noise[1]
    ),
  )


def build(
  model: split_model.SplitModel, hparams: HParams
) -> algorithm.AlgorithmSpec:
  """Builds the spec of FedADE; see `algorithm.AlgorithmSpec`.

  The initial weights of the model are the pre-trained ones. A client's state is
  one of `two_phase_adaptation` with a `Dynamics` or a `MovingDynamics`.
  """
  measure = measures.get(hparams.similarity)
  with_noise = hparams.correct_batch_noise
  has_histogram = hyperparameters.switch(hparams, "summary") == "histogram"
  has_moving_mean = hyperparameters.switch(hparams, "reference") == "ema"

  def initial_dynamics():
    last = Dynamics(
      Summaries(
        tf.zeros([model.num_classes]),
        tf.zeros([model.embedding_size]),
        tf.zeros([2]) if with_noise else (),
      ),
      measure.initial_state(model.num_classes),
      measure.initial_state(model.embedding_size),
      timestep=tf.constant(0),
    )
    return MovingDynamics(last, tf.constant(0)) if has_moving_mean else last

  def summarize_stream(weights, data, logits):
    if not has_histogram:
      return summarize(model, weights, data.stream_x, with_noise)
    return Summaries(
      dynamics.label_histogram(logits),
      dynamics.direction_of_mean(
        adaptation.embed(model, weights.backbone, data.stream_x)
      ),
    )

  def summarize_labelled(data):
    """Summarises the labelled examples with the pre-trained model."""
    weights = model.initial_weights(data.seed)
    with modes.with_statistics(model.statistics, are_fixed=True):
      if not has_histogram:
        return summarize(model, weights, data.x, with_noise)
      labelled = data._replace(stream_x=data.x)
      logits = evaluation.predict(model, weights, data.x)
      return summarize_stream(weights, labelled, logits)

  def signals(memory, previous, current):
    """Measures S_unc and S_rep; returns them with the measures' states."""
    uncertainty, uncertainty_state = measure.uncertainty(
      memory.uncertainty, previous.probabilities, current.probabilities
    )  # Eq. 12.
    representation, representation_state = measure.representation(
      memory.representation, previous.direction, current.direction
    )  # Eq. 14.
    return (
      (uncertainty, representation),
      (uncertainty_state, representation_state),
    )

  def rate_of(uncertainty, representation):
    signal = dynamics.combine(
      uncertainty,
      representation,
      use_uncertainty=hparams.use_uncertainty,
      use_representation=hparams.use_representation,
    )  # Eq. 10.
    if with_noise:
      # Clipped last, so that noise of either sign does not become shift.
      signal = tf.clip_by_value(signal, 0.0, 1.0)
    return dynamics.learning_rate(
      signal, hparams.eta_min, hparams.eta_max
    )  # Eq. 9.

  def observe(state, weights, data, logits):
    """Sets the learning rate (Algorithm 1, lines 7 to 10)."""
    memory = state.dynamics
    # At t = 0: the pre-trained model on the labelled examples.
    previous = tf.cond(
      tf.equal(memory.timestep, 0),
      lambda: summarize_labelled(data),
      lambda: memory.summaries,
    )
    current = summarize_stream(weights, data, logits)
    measured, states = signals(memory, previous, current)
    if with_noise:
      measured = correct_signals(previous, current, *measured)
    return state._replace(
      learning_rate=rate_of(*measured),
      dynamics=Dynamics(current, states[0], states[1], data.timestep),
    )

  def observe_once_a_timestep(state, weights, data, logits):
    return tf.cond(
      tf.equal(state.dynamics.timestep, data.timestep),
      lambda: state,
      lambda: observe(state, weights, data, logits),
    )

  def observe_each_round(state, weights, data, logits):
    """Sets the rate of a round relative to the moving mean."""
    memory = state.dynamics.last
    current = summarize_stream(weights, data, logits)
    is_first = tf.equal(memory.timestep, 0)
    reference = tf.where(
      is_first, current.direction, memory.summaries.direction
    )
    # In the first time step, labels are not compared.
    previous = Summaries(
      tf.where(
        is_first | tf.equal(data.timestep, 1),
        current.probabilities,
        memory.summaries.probabilities,
      ),
      reference,
    )
    measured, states = signals(memory, previous, current)
    rate = rate_of(*measured)
    moved = tf.where(
      is_first,
      reference,
      dynamics.move_reference(
        reference, current.direction, hparams.reference_share
      ),
    )
    num_rounds = 1 + tf.where(
      tf.equal(memory.timestep, data.timestep), state.dynamics.num_rounds, 0
    )
    mean = tf.where(num_rounds > 1, state.learning_rate, 0.0)
    return state._replace(
      rate=rate,
      learning_rate=mean + (rate - mean) / tf.cast(num_rounds, tf.float32),
      dynamics=MovingDynamics(
        Dynamics(
          current._replace(direction=moved), states[0], states[1], data.timestep
        ),
        num_rounds,
      ),
    )

  chosen = observe_once_a_timestep
  if has_moving_mean:
    chosen = observe_each_round
  elif hparams.compare == "rounds":
    chosen = observe
  return two_phase_adaptation.build(
    model,
    hparams,
    initial_rate=hparams.eta_min,
    initial_dynamics=initial_dynamics,
    observe=chosen,
    needs_logits=has_histogram,
    has_round_rates=has_moving_mean,
  )
