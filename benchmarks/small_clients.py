"""Times rounds of many small clients against a plain TensorFlow loop.

  python -m benchmarks.small_clients
  python -m benchmarks.small_clients --batch_clients --norest

A client takes four steps of FedAvg. The weights after a round must agree with
the loop of `benchmarks.plain_loop`. Both alternate; times are medians. The
memory of the first round is what the peak of the process has grown by, so give
one number of clients for it. The evaluation of 1,000 clients and a round
alternate too, in CPU seconds. Ratios are reproducible on a machine, seconds
vary from day to day. Run it on an idle machine.
"""

import resource
import statistics
import time

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags

from benchmarks import plain_clients
from benchmarks import plain_loop
from tff_shift import execution
from tff_shift.simulation.engine import client_data

FLAGS = flags.FLAGS
flags.DEFINE_list("num_clients", ["10", "100", "1000"], "Clients in a round.")
flags.DEFINE_integer("repetitions", 7, "Rounds of each implementation.")
flags.DEFINE_bool("rest", True, "Times changing cohorts, too.")
flags.DEFINE_bool("batch_clients", False, "Runs the clients in batches.")
flags.DEFINE_bool("compile_clients", False, "XLA compiles the batches.")

_STEPS = 4
_TOLERANCE = 1e-5
_WARM_UP = 2


def _time(run, clock=time.perf_counter) -> float:
  start = clock()
  run()
  return clock() - start


def _peak() -> int:
  """Returns the largest memory of this process so far, in KiB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _compare(num_clients: int) -> None:
  with plain_loop.started(num_clients, _STEPS) as plain:
    run = plain_loop.start_fed_avg(num_clients, _STEPS)
    before = _peak()
    first = _time(run.step, time.process_time)
    memory = (_peak() - before) / 2**10
    ours = [
      np.float64(w).sum() for w in tf.nest.flatten(run.server_state.weights)
    ]
    difference = np.abs(np.subtract(plain.sums, ours)).max()
    if not difference < _TOLERANCE * plain_clients.FEATURES:
      raise SystemExit(f"the plain loop gives other weights: {difference:.1e}")

    mine, theirs, ratio = plain.compare(run.step, FLAGS.repetitions)
  print(
    f"{num_clients:5} clients: in process {mine:.4f} s, plain loop"
    f" {theirs:.4f} s, ratio {ratio:.2f}; first round {first:.2f} CPU s, peak"
    f" {memory:+.0f} MiB",
    flush=True,
  )


def _changing_cohorts() -> None:
  """Times 20 rounds with cohorts of 50 to 150 of 150 clients, and of 100."""
  run = plain_loop.start_fed_avg(150, _STEPS)
  (phase,) = run.algorithm.phases
  generator = np.random.default_rng(2)
  sizes = generator.integers(50, 151, 20)

  def one(size):
    phase(run.server_state, [()] * size, run.data[:size])

  one(100)
  for label, chosen in (
    ("50 to 150", sizes),
    ("constant, the same total", np.full(20, round(sizes.mean()))),
  ):
    seconds = sum(_time(lambda size=size: one(size)) for size in chosen)
    print(f"20 rounds of {label}: {seconds:.2f} s", flush=True)


def _evaluation() -> None:
  """Times the evaluation of 1,000 clients and a round of them, in turns."""
  run = plain_loop.start_fed_avg(1000, _STEPS)
  to_predict = [
    client_data.to_predict(each.x, each.y, each.domain_sizes)
    for each in run.data
  ]
  states = run.client_states

  def evaluate():
    run.algorithm.evaluate_clients(
      run.server_state, states, run.data, to_predict
    )

  turns = []
  for _ in range(_WARM_UP + FLAGS.repetitions):
    turns.append(
      [_time(each, time.process_time) for each in (evaluate, run.step)]
    )
  turns = turns[_WARM_UP:]
  evaluation, one_round = map(statistics.median, zip(*turns, strict=True))
  ratios = [ours / of_round for ours, of_round in turns]
  print(
    f"evaluation of 1000 clients: {evaluation:.3f} CPU s, round"
    f" {one_round:.3f} CPU s, {min(ratios):.2f} to {max(ratios):.2f}, ratio"
    f" {statistics.median(ratios):.2f}",
    flush=True,
  )


def main(_) -> None:
  """Prints seconds and ratios."""
  counts = [int(each) for each in FLAGS.num_clients]
  with execution.use(
    "in_process",
    batch_clients=FLAGS.batch_clients or FLAGS.compile_clients,
    compile_clients=FLAGS.compile_clients,
  ):
    for num_clients in counts:
      _compare(num_clients)
    _evaluation()
    if FLAGS.rest:
      _changing_cohorts()


if __name__ == "__main__":
  app.run(main)
