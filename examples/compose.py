"""Your own TFF computation around the rounds of an algorithm.

Two rounds of FedRep in one computation, with a secure sum and a metric of one's
own beside them, on three executors: in this process, on TFF's C++ executor and
on two remote workers.

    python -m examples.compose
"""

import numpy as np

ROUNDS = 2


def main() -> None:
  """Prints the same numbers for each executor."""
  import tensorflow as tf
  import tensorflow_federated as tff

  import tff_shift as ts
  from tff_shift.execution import local

  generator = np.random.default_rng(0)
  data = [
    ts.ClientDataset.from_arrays(
      generator.normal(client, size=(20 + client, 4)).astype(np.float32),
      generator.integers(0, 2, 20 + client).astype(np.int32),
    )
    for client in range(4)
  ]
  model = ts.build_model(
    "mlp", input_shape=(4,), num_classes=2, input_dtype=np.float32, width=8
  )
  algorithm = ts.build_algorithm("fed_rep", model)
  server_type, states_type, data_type = algorithm.phases[
    0
  ].type_signature.parameter

  @tff.tensorflow.computation(data_type.member)
  def num_examples(client):
    return client.num_examples

  @tff.tensorflow.computation(data_type.member)
  def spread(client):
    # A metric of one's own, computed at the client.
    return tf.math.reduce_std(client.x)

  @tff.federated_computation(server_type, states_type, data_type)
  def rounds(server_state, client_states, clients):
    for _ in range(ROUNDS):
      for phase in algorithm.phases:
        server_state, client_states, metrics = phase(
          server_state, client_states, clients
        )
    total = tff.federated_secure_sum_bitwidth(
      tff.federated_map(num_examples, clients), 16
    )
    mean_spread = tff.federated_mean(tff.federated_map(spread, clients))
    return server_state, client_states, metrics, total, mean_spread

  *_, total_type, spread_type = rounds.type_signature.result
  print(f"beside the rounds, the server gets {total_type} and {spread_type}")
  workers = [local.Worker.start() for _ in range(2)]
  with workers[0], workers[1]:
    for name, options in (
      ("in_process", {}),
      ("local", {}),
      (
        "remote",
        {
          "remote_workers": ts.execution.RemoteWorkers(
            [worker.address for worker in workers]
          )
        },
      ),
    ):
      with ts.execution.use(name, **options):
        start = algorithm.start(data, run_seed=0)
        _, states, metrics, total, mean_spread = rounds(*start)
      print(
        f"{name}: loss {metrics['loss']:.4f}, {total} examples,"
        f" spread {mean_spread:.4f}, {len(states)} client states"
      )


if __name__ == "__main__":
  main()
