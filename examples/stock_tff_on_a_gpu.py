"""Runs TFF's own FedAvg on a GPU, if there is one.

    python -m examples.stock_tff_on_a_gpu

Only the execution context is from this package. Without a GPU the clients train
in parallel on the CPU.
"""

import collections

import tensorflow as tf
import tensorflow_federated as tff
from sklearn import datasets

from tff_shift.execution import in_process

NUM_CLIENTS, ROUNDS = 8, 15


def client_datasets() -> list[tf.data.Dataset]:
  """Partitions scikit-learn's digits over the clients."""
  x, y = datasets.load_digits(return_X_y=True)
  data = tff.simulation.datasets.TestClientData(
    {
      str(client): collections.OrderedDict(
        x=(x[client::NUM_CLIENTS] / 16).astype("float32"),
        y=y[client::NUM_CLIENTS].astype("int32"),
      )
      for client in range(NUM_CLIENTS)
    }
  )
  return [
    data.create_tf_dataset_for_client(client)
    .map(lambda each: (each["x"], each["y"]))
    .batch(20)
    for client in data.client_ids
  ]


def model_fn() -> tff.learning.models.VariableModel:
  """Builds a TFF model from a Keras model."""
  keras_model = tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer([64]),
      tf.keras.layers.Dense(64, activation="relu"),
      tf.keras.layers.Dense(10),
    ]
  )
  return tff.learning.models.from_keras_model(
    keras_model,
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=(
      tf.TensorSpec([None, 64], tf.float32),
      tf.TensorSpec([None], tf.int32),
    ),
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


def main() -> None:
  """Trains, and prints the accuracy of the last round."""
  print("devices:", [each.name for each in tf.config.list_logical_devices()])
  clients = client_datasets()
  fed_avg = tff.learning.algorithms.build_weighted_fed_avg(
    model_fn, client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.2)
  )
  with in_process.in_process_context():
    state = fed_avg.initialize()
    for _ in range(ROUNDS):
      state, metrics = fed_avg.next(state, clients)
  train = metrics["client_work"]["train"]
  accuracy = float(train["sparse_categorical_accuracy"])
  print(f"training accuracy after {ROUNDS} rounds: {accuracy:.1%}")


if __name__ == "__main__":
  main()
