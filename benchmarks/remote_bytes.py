"""Counts the bytes of a round between the driver and remote workers.

  python -m benchmarks.remote_bytes
  python -m benchmarks.remote_bytes --num_workers=8

Rounds of FedAvg on the clients of `benchmarks.plain_loop` (201 kB of examples
each), through counting proxies (`benchmarks.faulty_network`). Prints the bytes
to and from all workers: of the first two rounds, in which everything is new to
the workers, and of a later one; and the latter relative to the weights once per
worker and once per client.
"""

from absl import app
from absl import flags
from absl import logging

from benchmarks import faulty_network
from benchmarks import plain_loop
from tff_shift import algorithms
from tff_shift import execution
from tff_shift.execution import local
from tff_shift.models.networks import mlp
from tff_shift.simulation.engine import rounds

FLAGS = flags.FLAGS
flags.DEFINE_integer("num_workers", 2, "Workers.", lower_bound=1)
flags.DEFINE_integer("num_clients", 20, "Clients in all.", lower_bound=2)

_FEATURES, _CLASSES = 784, 10
# Of the two networks: 63,370 and 1,001,738 parameters.
_WIDTHS = (64, 464)
_ROUNDS = 6
_FLOAT = 4


def _start(width: int) -> tuple[rounds.Rounds, int]:
  """Returns a training before its first round, and the bytes of its weights."""
  model = mlp.build(
    (_FEATURES,), num_classes=_CLASSES, width=width, head_width=width
  )
  hparams = algorithms.get("fed_avg").HParams(batch_size=16, local_steps=4)
  run = rounds.Rounds(
    algorithms.build("fed_avg", model, hparams),
    [plain_loop.make_client(number) for number in range(FLAGS.num_clients)],
    run_seed=0,
  )
  return run, _FLOAT * model.num_parameters


def _count(network, run: rounds.Rounds, sizes) -> list[tuple[int, int]]:
  """Runs rounds; returns the bytes to and from the workers of each."""
  (phase,) = run.algorithm.phases
  state, found = run.server_state, []
  for number in range(_ROUNDS):
    before = network.count_bytes()
    # Cohorts take turns, unless one is everyone.
    cohort = [
      (number * sizes + position) % FLAGS.num_clients
      for position in range(sizes)
    ]
    state, _, _ = phase(
      state, [()] * sizes, [run.data[client] for client in sorted(cohort)]
    )
    after = network.count_bytes()
    found.append((after[0] - before[0], after[1] - before[1]))
  return found


def main(_) -> None:
  """Prints the table."""
  logging.set_verbosity(logging.WARNING)
  columns = (
    *("parameters", "clients per round"),
    *("first: to, MB", "from", "second: to", "from", "later: to", "from"),
    "to / (weights x workers)",
    "from / (weights x workers)",
    "both / (2 x weights x clients)",
  )
  print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
  num_workers, num_clients = FLAGS.num_workers, FLAGS.num_clients
  for width in _WIDTHS:
    for size in (num_clients, num_clients // 2):
      with execution.use("in_process"):
        run, weights = _start(width)
      workers = [local.Worker.start() for _ in range(num_workers)]
      try:
        with (
          faulty_network.Network([each.port for each in workers]) as network,
          execution.use(
            "remote", remote_workers=execution.RemoteWorkers(network.addresses)
          ),
        ):
          found = _count(network, run, size)
      finally:
        for each in workers:
          each.stop()
      to, back = found[-1]
      cells = [f"{weights // _FLOAT:,}", str(size)]
      cells += [
        f"{number / 1e6:.2f}"
        for each in (found[0], found[1], found[-1])
        for number in each
      ]
      cells += [
        f"{to / (weights * num_workers):.2f}",
        f"{back / (weights * num_workers):.2f}",
        f"{(to + back) / (2 * weights * size):.2f}",
      ]
      print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
  app.run(main)
