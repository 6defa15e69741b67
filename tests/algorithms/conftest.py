"""What the tests of the algorithms share: the contract's, a NumPy oracle."""

import contextlib
import types

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data import examples
from tff_shift.execution import local
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import parts
from tff_shift.models import split_model
from tff_shift.simulation.engine import client_data as client_data_lib
from tff_shift.simulation.engine import rounds
from tff_shift.testing import clients
from tff_shift.testing import fixtures
from tff_shift.testing import type_walk as type_walks

# The fixtures that the contract is tested with.
model = fixtures.model
contract_hparams = fixtures.contract_hparams
compare = fixtures.compare
client_data = clients.client_data
make_client = clients.make_client
make_adapting_client = clients.make_adapting_client
make_period_client = clients.make_period_client
type_walk = type_walks.type_walk


@pytest.fixture(scope="session")
def normalized_model():
  """Batch normalisation between two linear layers, all of random weights."""
  layers = tf.keras.layers
  keras_model = tf.keras.Sequential(
    [
      layers.InputLayer((5,)),
      layers.Dense(6, name="first"),
      layers.BatchNormalization(name="norm"),
      layers.ReLU(),
      layers.Dense(3, name="last"),
    ]
  )
  generator = np.random.default_rng(4)
  values = [generator.normal(size=w.shape) for w in keras_model.get_weights()]
  keras_model.set_weights(
    [np.abs(each) if each.ndim < 2 else each for each in values]
  )
  return models.from_keras(keras_model, initial="given")


def _dense_layers(weights, x, last_is_linear):
  pairs = list(zip(weights[::2], weights[1::2], strict=True))
  for position, (kernel, bias) in enumerate(pairs):
    x = x @ kernel + bias
    if not (last_is_linear and position == len(pairs) - 1):
      x = np.maximum(x, 0)
  return x


def _embed(backbone, x):
  return _dense_layers(backbone, x, last_is_linear=False)


def _classify(head, embeddings):
  return _dense_layers(head, embeddings, last_is_linear=True)


def _predict(weights, x):
  return _classify(weights.head, _embed(weights.backbone, x))


def _softmax_loss(logits, label):
  return np.log(np.sum(np.exp(logits - logits[label])))


def _cross_entropy(logits, y):
  return np.mean(
    [_softmax_loss(row, label) for row, label in zip(logits, y, strict=True)]
  )


def _losses(batches):
  """The cross-entropy on each batch, as a function of a model's weights."""
  return [
    lambda w, batch=batch: _cross_entropy(_predict(w, batch.x), batch.y)
    for batch in batches
  ]


def _class_means(embeddings, y):
  return {int(c): embeddings[y == c].mean(axis=0) for c in np.unique(y)}


def _distance(one, other, name):
  if name in ("l2", "squared_l2"):
    square = np.sum((one - other) ** 2)
    return square if name == "squared_l2" else np.sqrt(square)
  return 1 - one @ other / np.linalg.norm(one) / np.linalg.norm(other)


def _alignment_loss(embeddings, y, means, distance, classes=None):
  classes = set(y.tolist()) if classes is None else classes
  classes = sorted(means.keys() & classes)
  losses = [
    _softmax_loss(
      np.array([-_distance(row, means[c], distance) for c in classes]),
      classes.index(label),
    )
    for row, label in zip(embeddings, y.tolist(), strict=True)
    if label in classes
  ]
  return np.mean(losses) if losses else 0.0


def _gradient(loss, weights, chosen=None, step=1e-6):
  """Central differences of `loss(weights)`, weight by weight."""
  flat = [np.array(w, np.float64) for w in tf.nest.flatten(weights)]
  chosen = tf.nest.flatten(chosen) if chosen else [True] * len(flat)
  gradient = [np.zeros_like(w) for w in flat]

  def loss_at():
    return loss(tf.nest.pack_sequence_as(weights, flat))

  for values, slopes, moves in zip(flat, gradient, chosen, strict=True):
    for index in np.ndindex(values.shape if moves else (0,)):
      middle = values[index]
      values[index] = middle + step
      above = loss_at()
      values[index] = middle - step
      below = loss_at()
      values[index] = middle
      slopes[index] = (above - below) / (2 * step)
  return tf.nest.pack_sequence_as(weights, gradient)


def _descend(weights, losses, rate, chosen=None):
  """Plain gradient descent; returns the weights and the mean loss."""
  weights = tf.nest.map_structure(np.float64, weights)
  values = []
  for loss in losses:
    values.append(loss(weights))
    weights = tf.nest.map_structure(
      lambda w, g: w - rate * g, weights, _gradient(loss, weights, chosen)
    )
  return weights, np.mean(values)


def _work_network(phi, vector):
  """The target network of a hypernetwork, layer by layer."""
  features = vector
  for kernel, bias in phi.hidden:
    features = np.maximum(features @ kernel + bias, 0)
  weights = tuple(
    np.tensordot(features, kernel, axes=1) + bias for kernel, bias in phi.output
  )
  # One layer is the head's.
  return split_model.SplitWeights(weights[:-2], weights[-2:])


def _train_work_network(phi, vector, batches, rate):
  """Trains h(vector; phi) and differentiates h along the change.

  Returns:
    The trained weights less the initial ones, pulled back to phi and to the
    vector, and the mean loss.
  """
  weights = _work_network(phi, vector)
  trained, loss = _descend(
    weights,
    [
      lambda w, batch=batch: _cross_entropy(_predict(w, batch.x), batch.y)
      for batch in batches
    ],
    rate,
  )
  change = tf.nest.flatten(tf.nest.map_structure(np.subtract, trained, weights))

  def along_the_change(phi_and_vector):
    made = tf.nest.flatten(_work_network(*phi_and_vector))
    return sum(np.sum(w * c) for w, c in zip(made, change, strict=True))

  return *_gradient(along_the_change, (phi, vector)), loss


@pytest.fixture(scope="module")
def client(make_client):
  """A client with two domains."""
  return make_client(0, [6, 5])


@pytest.fixture(scope="module")
def weights(model, run_in_graph):
  """The server's initial weights."""
  return run_in_graph(model.initial_weights, randomness.server_seed(0))


@pytest.fixture(scope="module")
def personal(model, run_in_graph):
  """A personal model far from the server's."""
  return run_in_graph(model.initial_weights, randomness.server_seed(1))


@pytest.fixture(scope="session")
def oracle(run_in_graph):
  """The model, the losses and gradient descent in NumPy, in float64.

  And `batches(client, number, *words, size=4)`: those that are drawn with the
  seed of the client into which the words are folded.
  """

  def batches(client, number, *words, size=4):
    def draw(data):
      seed = randomness.fold(data.seed, *words)
      drawn = local_training.pooled_batches(data, number, size, seed)
      return [drawn(visit) for visit in range(number)]

    return run_in_graph(draw, client)

  return types.SimpleNamespace(
    batches=batches,
    embed=_embed,
    classify=_classify,
    predict=_predict,
    cross_entropy=_cross_entropy,
    losses=_losses,
    class_means=_class_means,
    alignment_loss=_alignment_loss,
    gradient=_gradient,
    descend=_descend,
    work_network=_work_network,
    train_work_network=_train_work_network,
  )


@pytest.fixture(scope="session")
def rounds_alone(compile_in_graph):
  """Returns `run(functions, client, timesteps)`: rounds of one client.

  They are outside of TFF, whose compiler takes most of a test's time. It gives
  the weights, the client's state and the loss after each round; of two phases,
  the loss of the second.
  """

  def run(functions, client, timesteps):
    def start(seed):
      weights = functions.initial_weights(seed)
      return weights, functions.initial_client_state(seed, weights)

    def step(weights, state, data, round_num):
      found = functions.train_client(weights, state, data, round_num)
      weights = tf.nest.map_structure(tf.add, weights, found.update)
      if functions.personalize_client is not None:
        found = functions.personalize_client(
          weights, found.client_state, data, round_num
        )
      return weights, found.client_state, found.loss

    def specs(*values):
      return tf.nest.map_structure(
        lambda value: tf.TensorSpec(np.shape(value), np.asarray(value).dtype),
        values,
      )

    found = [tf.nest.map_structure(np.asarray, start(client.seed))]
    compiled = compile_in_graph(step, *specs(*found[0], client, np.int32(0)))
    for round_num, data in enumerate(timesteps):
      if not isinstance(data, tuple):
        data = client._replace(timestep=np.int32(data))
      found.append(compiled(*found[-1][:2], data, np.int32(round_num)))
    return found[1:]

  return run


def _quadratic_model(start):
  """A model with one weight u whose loss is a / 2 (u - b)^2 + 1.

  An example is (a, b), of class 0: the cross-entropy of the logits 0 and z is
  log(1 + e^z), so z = log(e^q - 1) makes it q. The 1 keeps z finite.
  """

  def head(weights, embedding, _):
    (u,) = weights
    a, b = embedding[:, 0], embedding[:, 1]
    loss = a / 2 * tf.square(u - b) + 1.0
    return tf.stack([tf.zeros_like(loss), tf.math.log(tf.math.expm1(loss))], 1)

  return split_model.SplitModel(
    name="quadratic",
    backbone=parts.Part(lambda weights, x, frozen: x, (), (), (), ()),
    head=parts.Part(
      head,
      ("layer/u",),
      (lambda shape, seed: tf.fill(shape, start),),
      ((),),
      parts.paths(parts.HEAD, 1),
    ),
    input_shape=(2,),
    input_dtype=tf.float32,
    num_classes=2,
    embedding_size=2,
  )


@pytest.fixture(scope="session")
def quadratics(context):
  """Two clients with the losses u^2 / 2 and 4 (u - 1)^2 / 2.

  The mean is smallest at 0.8. `start(name, coefficients=..., repeats=...,
  at=0.0, participation=1.0, **hparams)` starts a run, whose `u(run)` is the
  server's weight. `repeats` is the number of equal examples of each client.
  """
  del context

  def start(
    name,
    coefficients=((1.0, 0.0), (4.0, 1.0)),
    repeats=(1, 1),
    at=0.0,
    participation=1.0,
    **values,
  ):
    data = client_data_lib.training_data(
      [
        examples.Examples(np.float32([each] * count), np.zeros(count, np.int32))
        for each, count in zip(coefficients, repeats, strict=False)
      ],
      run_seed=0,
    )
    module = algorithms.get(name)
    built = algorithms.build(
      module,
      _quadratic_model(at),
      module.HParams(batch_size=1, **values),
      num_clients=len(data),
    )
    return rounds.Rounds(built, data, run_seed=0, participation=participation)

  def u(run):
    weights = run.server_state.weights
    return float(getattr(weights, "model", weights).head[0])

  return types.SimpleNamespace(start=start, u=u)


@pytest.fixture
def runs_beside_fed_avg(context, model, make_client):
  """Returns `run(module, **options)`: three rounds of a limit of FedAvg.

  `limit` has the hyper-parameters of that limit, by default one server model.
  It gives the run and FedAvg's on the same data. The losses of each round are
  equal.
  """
  del context

  def run(
    module, *, limit=types.MappingProxyType({"num_models": 1}), **options
  ):
    # Sizes whose fractions are no float32 numbers.
    data = [make_client(i, [5 + 2 * i, 4]) for i in range(3)]
    fed_avg = algorithms.get("fed_avg")
    runs = [
      rounds.Rounds(algorithms.build(each, model, hparams), data, run_seed=0)
      for each, hparams in (
        (module, module.HParams(**limit, **options)),
        (fed_avg, fed_avg.HParams(**options)),
      )
    ]
    for _ in range(3):
      one, plain = (each.step()["loss"] for each in runs)
      assert one == plain
    return runs

  return run


@pytest.fixture
def on_other_executors():
  """Returns `run(compute)`: results on TFF's executor and on two workers."""

  def run(compute):
    found = []
    with contextlib.ExitStack() as workers:
      addresses = [
        workers.enter_context(local.Worker.start()).address for _ in range(2)
      ]
      remote = execution.RemoteWorkers(addresses)
      for name, options in (
        ("local", {}),
        ("remote", {"remote_workers": remote}),
      ):
        with execution.use(name, **options):
          found.append(compute())
    return found

  return run
