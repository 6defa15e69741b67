"""Compares clients in batches with the loop over clients, for each algorithm.

  python -m benchmarks.batched_clients
  python -m benchmarks.batched_clients --algorithms=fed_avg,fed_ade
  python -m benchmarks.batched_clients --compile_clients

First the operations of a round of FedAvg with small clients
(`benchmarks.plain_loop`) in each form (`benchmarks.kernels`). Then a line for
each algorithm. It has the largest difference between the two over all
results of all computations in two rounds, each computation from the loop's
previous results; whether clients are padded to equal sizes, and then are of
five sizes instead of two; the operations that ran in a loop over the clients of
a batch; and the computations that cannot run in batches, or whose batches XLA
cannot compile. Integers must be equal.
"""

import logging as python_logging
import re

from absl import app
from absl import flags
from absl import logging

from benchmarks import executor_equality
from benchmarks import kernels
from benchmarks import plain_loop
from tff_shift import algorithms
from tff_shift import execution
from tff_shift.data import client_dataset

FLAGS = flags.FLAGS


class _Messages(python_logging.Handler):
  """Collects what is logged."""

  def __init__(self):
    super().__init__()
    self.texts = []

  def emit(self, record):
    self.texts.append(record.getMessage())


def _compare(name: str) -> str:
  """Returns the line of an algorithm."""
  built = executor_equality.build(name)
  data_type = built.evaluate_clients.type_signature.parameter[2].member
  is_padded = data_type.python_container is client_dataset.PaddedDataset
  with execution.use("in_process", batch_clients=False):
    calls = executor_equality.run_all(built, num_sizes=5 if is_padded else 2)
  messages = _Messages()
  logging.get_absl_logger().addHandler(messages)
  differences, reasons = {}, {}
  with execution.use(
    "in_process",
    batch_clients=True,
    compile_clients=FLAGS.compile_clients,
  ):
    for call in calls:
      try:
        result = call.computation(*call.arguments)
      except execution.NotBatchedError as error:
        reasons[call.name] = re.sub(".*batches: ", "", str(error))
        continue
      differences[call.name] = executor_equality.largest_difference(
        result, call.result
      )
  logging.get_absl_logger().removeHandler(messages)
  looped = set()
  for text in messages.texts:
    part = re.search("except for (.*): client by client", text)
    looped |= set(part[1].split(", ")) if part else set()
    part = re.search("batches of (.*) are not compiled: (.*)", text, re.DOTALL)
    if part:
      reasons[f"{part[1]}, not compiled"] = part[2]
  largest = max(differences, key=differences.get)
  return (
    f"{name:18} {differences[largest]:8.1e} {largest:22.22}"
    f" {'yes' if is_padded else '-':7} {', '.join(sorted(looped)) or '-'}"
    + "".join(f"\n  {key}: {reason:.160}" for key, reason in reasons.items())
  )


def _print_operations() -> None:
  """Prints the number of operations of a round."""
  for is_batch in (False, True):
    with execution.use("in_process", batch_clients=is_batch):
      for num_clients in (10, 100):
        run = plain_loop.start_fed_avg(num_clients, num_steps=4)
        run.step()
        operations, on_floats = kernels.count(run.step)
        form = "batch" if is_batch else "loop"
        print(
          f"{form}, {num_clients} clients: {operations:,} operations,"
          f" {on_floats:,} with a kernel on floats"
        )


def main(_) -> None:
  """Prints the operations, and a line for each algorithm."""
  logging.set_verbosity(logging.INFO)
  logging.get_absl_handler().setLevel(logging.WARNING)
  if not FLAGS.compile_clients:
    _print_operations()
  print(f"{'algorithm':18} {'largest':>8} {'of':22} padding in a loop")
  for name in FLAGS.algorithms or algorithms.names():
    print(_compare(name), flush=True)


if __name__ == "__main__":
  flags.DEFINE_list("algorithms", [], "Algorithms to compare. Default: all.")
  flags.DEFINE_bool("compile_clients", False, "Whether XLA compiles batches.")
  app.run(main)
