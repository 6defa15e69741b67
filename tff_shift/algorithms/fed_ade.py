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

What leaves a client: the update of the backbone, the number of its unlabelled
examples, and the mean risk of both updates. Head, summaries, label estimates
and learning rate stay.
"""

# Decisions: BUILD_NOTES, "Streams that drift: Fed-ADE".

import dataclasses
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tff_shift.learning import algorithm
from tff_shift.learning import hyperparameters
from tff_shift.models import split_model
from tff_shift.shift import batch_noise
from tff_shift.shift import dynamics
from tff_shift.shift import measures
from tff_shift.techniques import adaptation
from tff_shift.techniques import two_phase_adaptation

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
    "The learning rate at the largest shift (eq. 9).",
    minimum=0,
    exclusive_minimum=True,
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
  compare: str = hyperparameters.hparam(
    "timesteps",
    "Which summaries are compared: timesteps, of consecutive time steps in"
    " which the client took part; rounds, of consecutive rounds.",
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


class Summaries(NamedTuple):
  """A client's summary of a batch.

  Attributes:
    probabilities: q of eq. 11, [num_classes] float32.
    direction: z of eq. 13, [embedding_size] float32.
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
  a `two_phase_adaptation.ClientState` with a `Dynamics`.
  """
  measure = measures.get(hparams.similarity)
  with_noise = hparams.correct_batch_noise

  def initial_dynamics():
    return Dynamics(
      Summaries(
        tf.zeros([model.num_classes]),
        tf.zeros([model.embedding_size]),
        tf.zeros([2]) if with_noise else (),
      ),
      measure.initial_state(model.num_classes),
      measure.initial_state(model.embedding_size),
      timestep=tf.constant(0),
    )

  def observe(state, weights, data):
    """Sets the learning rate (Algorithm 1, lines 7 to 10)."""
    memory = state.dynamics
    # At t = 0: the pre-trained model on the labelled examples.
    previous = tf.cond(
      tf.equal(memory.timestep, 0),
      lambda: summarize(
        model, model.initial_weights(data.seed), data.x, with_noise
      ),
      lambda: memory.summaries,
    )
    current = summarize(model, weights, data.stream_x, with_noise)
    uncertainty, uncertainty_state = measure.uncertainty(
      memory.uncertainty, previous.probabilities, current.probabilities
    )  # Eq. 12.
    representation, representation_state = measure.representation(
      memory.representation, previous.direction, current.direction
    )  # Eq. 14.
    if with_noise:
      uncertainty, representation = correct_signals(
        previous, current, uncertainty, representation
      )
    signal = dynamics.combine(
      uncertainty,
      representation,
      use_uncertainty=hparams.use_uncertainty,
      use_representation=hparams.use_representation,
    )  # Eq. 10.
    if with_noise:
      # Clipped last, so that noise of either sign does not become shift.
      signal = tf.clip_by_value(signal, 0.0, 1.0)
    return state._replace(
      learning_rate=dynamics.learning_rate(
        signal, hparams.eta_min, hparams.eta_max
      ),  # Eq. 9.
      dynamics=Dynamics(
        current, uncertainty_state, representation_state, data.timestep
      ),
    )

  def observe_once_a_timestep(state, weights, data):
    return tf.cond(
      tf.equal(state.dynamics.timestep, data.timestep),
      lambda: state,
      lambda: observe(state, weights, data),
    )

  return two_phase_adaptation.build(
    model,
    hparams,
    initial_rate=hparams.eta_min,
    initial_dynamics=initial_dynamics,
    observe=(
      observe if hparams.compare == "rounds" else observe_once_a_timestep
    ),
  )
