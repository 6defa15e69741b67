"""Compares the algorithms in process on the default devices and on the CPU.

  python -m benchmarks.gpu_equality
  python -m benchmarks.gpu_equality --algorithms=fed_ade

Each computation of two rounds (see `benchmarks.executor_equality`) starts from
the CPU's previous results, so differences do not accumulate. It is repeated on
the devices: `repeated` is the largest difference of the two results, 0 if they
have the same bits. TF32 is off. Without a GPU all differences are 0.
"""

import tensorflow as tf
import tensorflow_federated as tff
from absl import app
from absl import flags
from absl import logging

from benchmarks import executor_equality
from tff_shift import algorithms
from tff_shift import execution

_ALGORITHMS = flags.DEFINE_list(
  "algorithms",
  [],
  "Algorithms to compare, comma-separated. Default: all.",
)


def main(_) -> None:
  """Prints a line for each algorithm."""
  logging.set_verbosity(logging.WARNING)
  tf.config.experimental.enable_tensor_float_32_execution(False)
  names = _ALGORITHMS.value or algorithms.names()
  install = tff.framework.get_context_stack().install
  with (
    execution.use("in_process") as devices,
    execution.use(
      "in_process", server_device="CPU:0", client_devices=["CPU:0"]
    ) as cpu,
  ):
    print(f"{'algorithm':12} {'to CPU':>8} {'repeated':>8}  computation")
    for name in names:
      algorithm = executor_equality.build(name)
      with install(cpu):
        calls = executor_equality.run_all(algorithm)
      to_cpu, repeated = {}, 0.0
      with install(devices):
        for call in calls:
          first, second = (call.computation(*call.arguments) for _ in range(2))
          to_cpu[call.name] = executor_equality.largest_difference(
            first, call.result
          )
          repeated = max(
            repeated, executor_equality.largest_difference(second, first)
          )
      largest = max(to_cpu, key=to_cpu.get)
      print(
        f"{name:12} {to_cpu[largest]:8.1e} {repeated:8.1e}  {largest}",
        flush=True,
      )


if __name__ == "__main__":
  app.run(main)
