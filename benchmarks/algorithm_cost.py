"""Compares each algorithm with a plain loop of as many gradient steps.

  python -m benchmarks.algorithm_cost
  python -m benchmarks.algorithm_cost --algorithms=fed_avg,fed_evolve

A round consists of all phases of an algorithm, in process, for 100 small
clients with 64 examples in two domains (see `benchmarks.plain_loop`; here its
model has a guide, for algorithms that need one). The plain loop takes as many
gradient steps of cross-entropy, on batches of the same size: on all weights, or
on the head with each example embedded once. Both alternate; the ratio is the
median over repetitions. A second ratio is for the algorithm's functions alone:
its excess over 1 is the cost of the method, and the difference of the two
ratios is the cost of the execution context. Run it on an idle machine.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags
from absl import logging

from benchmarks import executor_equality
from benchmarks import plain_clients
from benchmarks import plain_loop
from tff_shift import algorithms
from tff_shift import execution
from tff_shift.data import examples
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import randomness
from tff_shift.learning import work
from tff_shift.models import guided_model
from tff_shift.models import split_model

FLAGS = flags.FLAGS
flags.DEFINE_list(
  "algorithms",
  [],
  "Algorithms, comma-separated. Default: all that train, except those of"
  " streams without labels that are not in `_STEPS`.",
)
flags.DEFINE_integer("num_clients", 100, "Clients in a round.", lower_bound=1)
flags.DEFINE_integer("repetitions", 7, "Turns of each.", lower_bound=1)
flags.DEFINE_bool("cpu", False, "Count CPU seconds, for a busy machine.")

# Two domains of two batches each; an epoch is one iteration.
_DOMAIN_SIZES = (plain_clients.EXAMPLES // 2,) * 2
_SETTINGS = {
  "batch_size": plain_clients.BATCH,
  "local_steps": 4,
  "head_steps": 4,
  "head_epochs": 1,
  "learning_rate": 0.01,
  # The examples are not images.
  "augmentation": "none",
}
# Rounds before the first that is timed: by then all domains have come.
_FIRST_ROUNDS = 2
_LEARNERS = 6


class _Steps(NamedTuple):
  """Gradient steps of a client in a round."""

  on_all: int
  on_head: int = 0


# An iteration visits each domain.
_BOTH_DOMAINS = _Steps(8)
# Of the others, the gradients are counted, all on all weights.
_STEPS = {
  # A step on the shared model and one on the client's own.
  "apfl": _Steps(2 * 8),
  "atlas": _Steps(0, 4 * _LEARNERS),
  "cfed": _BOTH_DOMAINS,
  "cfl": _BOTH_DOMAINS,
  "con_free": _Steps(2 * 8),
  "ditto": _Steps(2 * 8),
  "fed_3da": _Steps(4),
  "fed_ade": _Steps(4, 4),
  # An epoch over the mixture of the last layer is four batches.
  "fed_ala": _Steps(8, 4),
  # An epoch of four batches aligns, another computes the Fisher information.
  "fed_as": _Steps(4 + 8 + 4),
  "fed_avg": _BOTH_DOMAINS,
  "fed_avg_ft": _BOTH_DOMAINS,
  "fed_babu": _BOTH_DOMAINS,
  # Four steps of the personal classifier, five of the compared one.
  "fed_ccfa": _Steps(4, 9),
  # A domain belongs to one of the models, whichever it is.
  "fed_drift": _BOTH_DOMAINS,
  "fed_drm": _BOTH_DOMAINS,
  # A step trains both of its networks.
  "fed_evolve": _Steps(2 * 4),
  "fed_evp": _Steps(4),
  "fed_pac": _Steps(2 * 8),
  # A step on each of its two heads.
  "fed_poe": _Steps(0, 2 * 4),
  "fed_prox": _BOTH_DOMAINS,
  "fed_prox_ft": _BOTH_DOMAINS,
  # Half of the steps train the head, half the backbone, by the whole model.
  "fed_rep": _Steps(2 * 8),
  "fed_rod": _Steps(8, 8),
  # Two gradients per step.
  "fed_sam_ft": _Steps(2 * 8),
  "fed_sr": _BOTH_DOMAINS,
  # An epoch of the personal head is four batches.
  "fed_the": _Steps(8, 4),
  "fix_lr": _Steps(4, 4),
  "flute": _Steps(2 * 8),
  "gma": _BOTH_DOMAINS,
  "local": _BOTH_DOMAINS,
  "memo": _BOTH_DOMAINS,
  "p_fed_hn": _Steps(4),
  "t3a": _BOTH_DOMAINS,
  # Each step has a batch of the stream in addition to the labelled one.
  "uda": _Steps(2 * 4),
  "unida": _Steps(2 * 4),
}


class _Timed(NamedTuple):
  """An algorithm to be timed.

  Attributes:
    steps: The gradient steps of a client in a round; None: they depend on more
      than its data.
    run_round: Runs a round.
    run_functions: Runs the functions of all clients alone.
  """

  steps: _Steps | None
  run_round: Callable[[], None]
  run_functions: Callable[[], None]


def _start(name: str) -> _Timed:
  """Builds an algorithm and its clients."""
  module = algorithms.get(name)
  model = guided_model.with_guide(
    plain_loop.build_model(),
    num_clients=FLAGS.num_clients,
    width=plain_clients.WIDTH,
  )
  if "online_adaptation" in module.SCENARIOS:
    # A deployed model's weights are constants.
    drawn = tf.nest.flatten(model.initial_weights(randomness.server_seed(0)))
    model = split_model.with_weights(
      model,
      dict(
        zip(
          tf.nest.flatten(model.weight_names()),
          [each.numpy() for each in drawn],
          strict=True,
        )
      ),
    )
  names = {field.name for field in dataclasses.fields(module.HParams)}
  settings = _SETTINGS | {"local_epochs": 1 if "head_epochs" in names else 0}
  if name == "atlas":
    settings |= {"local_epochs": 1, "num_learners": _LEARNERS}
  hparams = module.HParams(**{k: v for k, v in settings.items() if k in names})
  algorithm = algorithms.build(
    module, model, hparams, num_clients=FLAGS.num_clients
  )
  kind = algorithm.evaluate_clients.type_signature.parameter[2].member
  data = [
    _read_only(executor_equality.make_data(kind, client, 0, _DOMAIN_SIZES))
    for client in range(FLAGS.num_clients)
  ]
  state = algorithm.initialize(randomness.server_seed(0))
  states = algorithm.initialize_client(state, [each.seed for each in data])

  def run():
    nonlocal state, states, data
    if "timestep" in data[0]._fields:
      # Each round is a new time step, so that it measures the shift.
      data = [
        each._replace(timestep=np.int32(each.timestep + 1)) for each in data
      ]
    for phase in algorithm.phases:
      state, states, _ = phase(state, states, data)

  for _ in range(_FIRST_ROUNDS):
    run()
  build = algorithms.spec_builder(module, FLAGS.num_clients)
  functions = _functions_alone(build(model, hparams))
  first = state.weights, tf.nest.map_structure(lambda *w: np.stack(w), *states)
  rows = tf.nest.map_structure(lambda *each: tf.stack(each), *data)
  first = tf.nest.map_structure(tf.constant, first)
  steps = _STEPS.get(name)
  if steps is None:
    counted = work.gradients_of_round(algorithm, data[:1])
    steps = None if counted is None else _Steps(round(counted))
  return _Timed(steps, run, lambda: functions(*first, rows))


def _read_only(data):
  """Makes the arrays read-only, as those of the package are."""
  for each in data:
    if isinstance(each, np.ndarray):
      examples.read_only(each)
  return data


def _functions_alone(functions: algorithm_lib.AlgorithmSpec):
  """Returns a function that runs all clients in a loop and sums their updates.

  Args:
    functions: The functions of an algorithm.

  Returns:
    `(weights, states, data) -> None`; states and data have a first axis of
    clients.
  """

  def work(weights, state, data):
    update = ()
    round_num = tf.constant(_FIRST_ROUNDS)
    if functions.train_client is not None:
      result = functions.train_client(weights, state, data, round_num)
      update, state = result.update, result.client_state
    if functions.personalize_client is not None:
      state = functions.personalize_client(
        weights, state, data, round_num
      ).client_state
    kept = [
      tf.reduce_sum(tf.cast(s, tf.float32)) for s in tf.nest.flatten(state)
    ]
    return [*tf.nest.flatten(update), *kept]

  def run_all(weights, states, data):
    def of_client(client):
      return work(
        weights,
        *tf.nest.map_structure(lambda rows: rows[client], (states, data)),
      )

    totals = of_client(0)
    return tf.while_loop(
      lambda client, *_: client < FLAGS.num_clients,
      lambda client, *sums: (
        client + 1,
        *(a + b for a, b in zip(sums, of_client(client), strict=True)),
      ),
      (tf.constant(1), *totals),
    )

  def run(*arguments):
    nonlocal traced
    if traced is None:
      # Keras models wrapped by TFF require an outer graph.
      with tf.Graph().as_default():
        traced = tf.compat.v1.wrap_function(
          lambda *flat: run_all(*tf.nest.pack_sequence_as(arguments, flat)),
          [tf.TensorSpec(a.shape, a.dtype) for a in tf.nest.flatten(arguments)],
        )
    for each in traced(*tf.nest.flatten(arguments)):
      each.numpy()

  traced = None
  return run


def _compare(name: str) -> None:
  steps, *trial = _start(name)
  if not steps:
    # They depend on more than the data of a client.
    return
  clock = time.process_time if FLAGS.cpu else time.perf_counter
  with plain_loop.started(FLAGS.num_clients, *steps) as plain:
    (ours, theirs, ratio), (*_, alone) = (
      plain.compare(run, FLAGS.repetitions, clock) for run in trial
    )
  print(
    f"| {name} | {steps.on_all} | {steps.on_head} | {ours:.4f} |"
    f" {theirs:.4f} | {ratio:.2f} | {alone:.2f} |",
    flush=True,
  )


def _is_timed(name: str) -> bool:
  return name in _STEPS or algorithms.describe(name).scenarios != (
    "online_adaptation",
  )


def main(_) -> None:
  """Prints the table."""
  logging.set_verbosity(logging.WARNING)
  print(
    "| algorithm | steps | of the head | seconds | plain | ratio | functions"
    " alone |"
  )
  print("| --- | --- | --- | --- | --- | --- | --- |")
  with execution.use("in_process"):
    for name in FLAGS.algorithms or filter(_is_timed, algorithms.names()):
      _compare(name)


if __name__ == "__main__":
  app.run(main)
