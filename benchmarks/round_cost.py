"""Times a round of FedAvg against plain TensorFlow and stock TFF.

  python -m benchmarks.round_cost

In a round, 10 clients with 320 RGB images of 32x32 each take 10 SGD steps (rate
0.05) on batches of 32 with a convolutional network of 70,378 parameters; then
the mean is computed. All implementations use the same batches in the same
order. A check verifies that their weights after a round agree to within half of
a step. They alternate in one process; times are medians over repetitions.
Ratios are reproducible on a machine, seconds vary from day to day. Run it on an
idle machine.
"""

import statistics
import time
from collections.abc import Callable
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import app
from absl import flags

from benchmarks import plain_cnn
from tff_shift import algorithms
from tff_shift import execution
from tff_shift.algorithms import fed_avg
from tff_shift.data import client_dataset
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

FLAGS = flags.FLAGS
flags.DEFINE_integer("repetitions", 7, "Rounds of each implementation.")
flags.DEFINE_integer("num_clients", 10, "Clients in a round.")
flags.DEFINE_integer("num_steps", 10, "SGD steps of a client.")

_BATCH = 32
_RATE = 0.05
_IMAGE = (32, 32, 3)
_CLASSES = 10


def _backbone() -> tf.keras.Model:
  layers = tf.keras.layers
  stack = [layers.InputLayer(_IMAGE)]
  for i, (width, stride) in enumerate(((32, 1), (32, 2), (64, 2), (64, 1))):
    stack.append(
      layers.Conv2D(
        width,
        3,
        strides=stride,
        padding="same",
        activation="relu",
        name=f"layer{i + 1}",
      )
    )
  return tf.keras.Sequential([*stack, layers.GlobalAveragePooling2D()])


def _head() -> tf.keras.Model:
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      layers.InputLayer((64,)),
      layers.Dense(64, activation="relu", name="layer5"),
      layers.Dense(_CLASSES, name="layer6"),
    ]
  )


def _whole() -> tf.keras.Model:
  return tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer(_IMAGE),
      *_backbone().layers,
      *_head().layers,
    ]
  )


def _client_data() -> list[client_dataset.ClientDataset]:
  generator = np.random.default_rng(0)
  size = _BATCH * FLAGS.num_steps
  return [
    client_dataset.ClientDataset.from_arrays(
      x=generator.random((size, *_IMAGE), np.float32),
      y=generator.integers(0, _CLASSES, size, np.int32),
      domain_sizes=np.array([size], np.int32),
      seed=randomness.client_seed(0, client),
    )
    for client in range(FLAGS.num_clients)
  ]


def _as_drawn(
  data: client_dataset.ClientDataset,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns a client's examples in the order in which FedAvg draws them."""
  seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, 0)
  batches = [
    local_training.pooled_batches(data, step + 1, _BATCH, seed)(step)
    for step in range(FLAGS.num_steps)
  ]
  return (
    np.concatenate([batch.x for batch in batches]),
    np.concatenate([batch.y for batch in batches]),
  )


def _plain_client(weights, x, y):
  def step(i, current):
    batch = slice(i * _BATCH, (i + 1) * _BATCH)
    with tf.GradientTape() as tape:
      tape.watch(current)
      loss = local_training.cross_entropy(
        plain_cnn.logits(current, x[batch]), y[batch]
      )
    gradients = tape.gradient(loss, current)
    return i + 1, tuple(
      w - _RATE * g for w, g in zip(current, gradients, strict=True)
    )

  return tf.while_loop(
    lambda i, _: i < FLAGS.num_steps,
    step,
    (tf.constant(0), weights),
    parallel_iterations=1,
  )[1]


def _plain_loop(
  initial, drawn, *, in_sequence: bool
) -> Callable[[], list[np.ndarray]]:
  """Plain TensorFlow: all clients in one `tf.function`.

  Args:
    initial: The initial weights.
    drawn: The examples of each client.
    in_sequence: Whether a client waits for the previous one. Otherwise clients
      are independent chains that TensorFlow's scheduler interleaves.

  Returns:
    A function that runs a round and returns its weights.
  """

  @tf.function
  def run(weights, xs, ys):
    trained = []
    for x, y in zip(xs, ys, strict=True):
      with tf.control_dependencies(
        trained[-1] if in_sequence and trained else ()
      ):
        trained.append(_plain_client(tuple(map(tf.identity, weights)), x, y))
    return [tf.add_n(list(parts)) / len(xs) for parts in zip(*trained)]  # noqa: B905

  weights = tuple(map(tf.constant, initial))
  xs, ys = ([tf.constant(part) for part in parts] for parts in zip(*drawn))  # noqa: B905
  return lambda: [w.numpy() for w in run(weights, xs, ys)]


def _stock(initial, drawn) -> Callable[[], list[np.ndarray]]:
  """Builds stock TFF's `build_weighted_fed_avg` on batched data sets."""
  spec = (
    tf.TensorSpec((None, *_IMAGE), tf.float32),
    tf.TensorSpec((None,), tf.int32),
  )

  def loss(y_true, y_pred, sample_weight=None):
    del sample_weight
    return local_training.cross_entropy(y_pred, y_true)

  model = tff.learning.models.functional_model_from_keras(_whole(), loss, spec)
  learning_process = tff.learning.algorithms.build_weighted_fed_avg(
    model,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(_RATE),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
  )
  state = learning_process.set_model_weights(
    learning_process.initialize(),
    tff.learning.models.ModelWeights(tuple(initial), ()),
  )
  datasets = [
    tf.data.Dataset.from_tensor_slices(part).batch(_BATCH) for part in drawn
  ]

  def run():
    new_state = learning_process.next(state, datasets).state
    return list(learning_process.get_model_weights(new_state).trainable)

  return run


def _ours(initial, data) -> Callable[[], list[np.ndarray]]:
  """Builds this package's FedAvg."""
  model = split_model.build_split_model(
    "benchmark", backbone=_backbone, head=_head, input_dtype=tf.float32
  )
  algorithm = algorithms.build(
    fed_avg,
    model,
    fed_avg.HParams(
      local_steps=FLAGS.num_steps, batch_size=_BATCH, learning_rate=_RATE
    ),
  )
  state = algorithm.initialize(randomness.server_seed(0))
  num_backbone = len(model.backbone.names)
  state = state._replace(
    weights=split_model.SplitWeights(
      tuple(initial[:num_backbone]), tuple(initial[num_backbone:])
    )
  )
  nothing = [()] * len(data)

  def run():
    new_state, _, _ = algorithm.phases[0](state, nothing, data)
    return [np.asarray(w) for w in tf.nest.flatten(new_state.weights)]

  return run


def _check_same_work(
  name: str,
  initial: Sequence[np.ndarray],
  reference: Sequence[np.ndarray],
  found: Sequence[np.ndarray],
) -> None:
  """Ends the program if weights after a round differ from the reference.

  Kernels add in different orders, and these gradients are sums of 32,768 terms
  that nearly cancel: on a processor without AVX-512 the weights of stock TFF
  and plain TensorFlow differ by 5e-5, on others by 1e-6. A missing step, or a
  step on another batch, changes the weight that moves most by about its largest
  change over the number of steps; the tolerance is half of this.
  """
  moved = max(
    float(np.abs(a - b).max()) for a, b in zip(initial, reference, strict=True)
  )
  allowed = moved / FLAGS.num_steps / 2
  differences = [
    float(np.abs(a - b).max()) for a, b in zip(reference, found, strict=True)
  ]
  worst = int(np.argmax(differences))
  print(
    f"{name}: weights differ from plain TensorFlow by at most"
    f" {differences[worst]:.1e}"
  )
  if not differences[worst] <= allowed:
    raise SystemExit(
      f"{name} does not do the same work: weights {worst + 1} of"
      f" {len(differences)}, of shape {list(reference[worst].shape)}, differ by"
      f" {differences[worst]:.1e}, and {allowed:.1e} are allowed, half of what"
      " a step moves a weight"
    )


def _in(context, build) -> Callable[[], list[np.ndarray]]:
  """Builds and runs an implementation in a TFF context."""
  with tff.framework.get_context_stack().install(context):
    trial = build()

  def run():
    with tff.framework.get_context_stack().install(context):
      return trial()

  return run


def main(_) -> None:
  """Checks that results agree, then times the implementations alternately."""
  initial = _whole().get_weights()
  print(f"{sum(w.size for w in initial):,} parameters")
  data = _client_data()
  drawn = [_as_drawn(client) for client in data]
  with (
    execution.use("in_process") as in_process,
    execution.use("local") as local,
  ):
    trials = {
      "plain TensorFlow, clients in sequence": _plain_loop(
        initial, drawn, in_sequence=True
      ),
      "plain TensorFlow, clients as independent chains": _plain_loop(
        initial, drawn, in_sequence=False
      ),
      "stock TFF, C++ executor": _in(local, lambda: _stock(initial, drawn)),
      "tff_shift, C++ executor": _in(local, lambda: _ours(initial, data)),
      "stock TFF, in process": _in(in_process, lambda: _stock(initial, drawn)),
      "tff_shift, in process": _in(in_process, lambda: _ours(initial, data)),
    }
    reference = None
    for name, run in trials.items():
      weights = run()
      reference = reference or weights
      _check_same_work(name, initial, reference, weights)
    seconds = {name: [] for name in trials}
    for _ in range(FLAGS.repetitions):
      for name, run in trials.items():
        start = time.perf_counter()
        run()
        seconds[name].append(time.perf_counter() - start)
  medians = {name: statistics.median(each) for name, each in seconds.items()}
  base = next(iter(medians.values()))
  print(f"{'seconds':>8} {'ratio':>6}  median of {FLAGS.repetitions}")
  for name, median in medians.items():
    print(f"{median:8.3f} {median / base:6.2f}  {name}")


if __name__ == "__main__":
  app.run(main)
