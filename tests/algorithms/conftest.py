"""What the tests of the algorithms share: the contract's, a NumPy oracle."""

import dataclasses
import importlib
import types

import numpy as np
import pytest
import scipy.spatial
import tensorflow as tf
from numpy.testing import assert_allclose

from tests.fixtures import keras_models
from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift import models
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.learning.aggregators import client_slots
from tff_shift.models import split_model
from tff_shift.models.networks import mlp
from tff_shift.simulation.engine import rounds
from tff_shift.testing import applicability
from tff_shift.testing import clients
from tff_shift.testing import fixtures
from tff_shift.testing import forms
from tff_shift.testing import running
from tff_shift.testing import type_walk as type_walks

pytest_collection_modifyitems = applicability.leave_out

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
  keras_model = keras_models.sequential(
    (5,),
    layers.Dense(6, name="first"),
    layers.BatchNormalization(name="norm"),
    layers.ReLU(),
    layers.Dense(3, name="last"),
  )
  generator = np.random.default_rng(4)
  values = [generator.normal(size=w.shape) for w in keras_model.get_weights()]
  keras_model.set_weights(
    [np.abs(each) if each.ndim < 2 else each for each in values]
  )
  return models.from_keras(keras_model, initial="given")


@pytest.fixture(scope="session")
def deep_model():
  """With a head of two layers, of which one may stay in the backbone."""
  return mlp.build((5,), num_classes=3, width=8, head_width=6)


@pytest.fixture(scope="session")
def normalized_weights(normalized_model):
  """Those of `normalized_model`, in float64."""
  drawn = normalized_model.initial_weights(np.int32([1, 2]))
  return trees.map(np.float64, drawn)


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


def _moments(weights, x):
  """Mean and variance of what `normalized_model` normalises."""
  kernel, bias, *_ = weights.backbone
  before = np.float64(x) @ kernel + bias
  return before.mean(axis=0), before.var(axis=0)


def _normalize(weights, x, moments=None):
  """The logits of `normalized_model`; by default by the batch."""
  (kernel, bias, scale, shift), head = weights
  mean, variance = moments or _moments(weights, x)
  normed = (np.float64(x) @ kernel + bias - mean) / np.sqrt(variance + 1e-3)
  return _classify(head, np.maximum(normed * scale + shift, 0))


def _cross_entropy(logits, y):
  return np.mean(
    [
      np.log(np.sum(np.exp(row - row[label])))
      for row, label in zip(logits, y, strict=True)
    ]
  )


def _softmax(logits):
  powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
  return powers / powers.sum(axis=-1, keepdims=True)


def _entropy(logits):
  """The mean entropy of the predictions."""
  p = _softmax(logits)
  return -np.mean(np.sum(p * np.log(p), axis=-1))


def _losses(batches):
  """The cross-entropy on each batch, as a function of a model's weights."""
  return [
    lambda w, batch=batch: _cross_entropy(_predict(w, batch.x), batch.y)
    for batch in batches
  ]


def _example_losses(models, client):
  """The cross-entropy of each model of a stack on each example, [n, models]."""
  return np.array(
    [
      [
        _cross_entropy(_predict(trees.row(models, k), x[np.newaxis]), [y])
        for k in range(len(trees.leaves(models)[0]))
      ]
      for x, y in zip(client.x, client.y, strict=True)
    ]
  )


def _estimated_classes(weights, client):
  """BBSE: the distribution of the classes of a client's stream."""
  predicted = _predict(weights, client.stream_x).argmax(axis=1)
  shares = np.bincount(predicted, minlength=3) / len(predicted)
  classes = np.maximum(np.linalg.solve(client.confusion, shares), 0)
  return classes / classes.sum()


def _risk(logits, y, classes):
  """Eq. 4 of Fed-ADE's paper, class by class."""
  return sum(
    share * _cross_entropy(logits[y == c], y[y == c])
    for c, share in enumerate(classes)
  )


def _class_means(embeddings, y):
  return {int(c): embeddings[y == c].mean(axis=0) for c in np.unique(y)}


def _distances(embeddings, means, name):
  metric = {"l2": "euclidean", "squared_l2": "sqeuclidean"}.get(name, name)
  return scipy.spatial.distance.cdist(embeddings, means, metric)


def _alignment_loss(embeddings, y, means, distance, classes=None):
  """Eq. 4 of FedEvolve; `means` by class, of which some may be left out."""
  known = means.keys() & (set(y.tolist()) if classes is None else classes)
  known = sorted(known)
  chosen = np.isin(y, known)
  if not np.any(chosen):
    return 0.0
  centres = np.stack([means[c] for c in known])
  return _cross_entropy(
    -_distances(embeddings[chosen], centres, distance),
    np.searchsorted(known, y[chosen]),
  )


def _gradient(loss, weights, chosen=None, step=1e-6):
  """Central differences of `loss(weights)`, weight by weight."""
  flat = [np.array(w, np.float64) for w in trees.leaves(weights)]
  chosen = trees.leaves(chosen) if chosen else [True] * len(flat)
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


def _part(weights, name):
  """Of each weight of a model, whether it belongs to the part of the name."""
  return weights._make(
    trees.map(lambda _, field=field: field == name, part)
    for field, part in weights._asdict().items()
  )


def _descend(weights, losses, rate, chosen=None, decay=0.0):
  """Plain gradient descent; returns the weights and the mean loss.

  `chosen` is the part of the model that moves, or a flag of each weight.
  """
  if isinstance(chosen, str):
    chosen = _part(weights, chosen)
  weights = trees.map(np.float64, weights)
  values = []
  for loss in losses:
    values.append(loss(weights))
    slopes = _gradient(
      lambda w, loss=loss: loss(w) + decay / 2 * trees.inner(w, w),
      weights,
      chosen,
    )
    weights = trees.add(weights, slopes, -rate)
  return weights, np.mean(values)


def _check(result, start, trained, loss, tolerance=1e-5):
  """Compares the update of a client, and its loss."""
  for change, new, old in trees.pairs(result.update, trained, start):
    assert_allclose(change, new - old, rtol=0, atol=tolerance)
  assert_allclose(result.loss, loss, rtol=1e-5)


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
  trained, loss = _descend(weights, _losses(batches), rate)
  change = trees.subtract(trained, weights)

  def along_the_change(phi_and_vector):
    return trees.inner(_work_network(*phi_and_vector), change)

  return *_gradient(along_the_change, (phi, vector)), loss


@pytest.fixture(scope="module")
def client(request, make_client, make_adapting_client):
  """A client with domains, whose `SIZES` the test's file may have.

  Or one with as many labelled and unlabelled examples as `STREAM` says.
  """
  stream = getattr(request.module, "STREAM", None)
  if stream:
    return make_adapting_client(0, *stream)
  return make_client(0, getattr(request.module, "SIZES", [6, 5]))


@pytest.fixture(scope="module")
def functions(request, build):
  """The functions of an algorithm with the `HPARAMS` of the test's file."""
  return build(request.module.HPARAMS)


@pytest.fixture(scope="module")
def initial(model, run_in_graph):
  """Returns `initial(seed)`: weights by a server's number or by words [2]."""

  def draw(seed):
    if isinstance(seed, int):
      seed = randomness.server_seed(seed)
    return run_in_graph(model.initial_weights, seed)

  return draw


@pytest.fixture(scope="module")
def weights(request, initial, client):
  """The initial weights: the server's, or a client's that has a stream."""
  return initial(client.seed if hasattr(request.module, "STREAM") else 0)


@pytest.fixture(scope="module")
def shared(functions):
  """What the server of these functions starts with."""
  return functions.initial_weights(randomness.server_seed(0))


@pytest.fixture(scope="session")
def domain_of():
  """Returns `domain_of(client, domain)`: a client with one of its domains."""

  def part_of(client, domain):
    end = np.cumsum(client.domain_sizes)[domain]
    part = slice(end - client.domain_sizes[domain], end)
    return client._replace(
      x=client.x[part],
      y=client.y[part],
      domain_sizes=client.domain_sizes[domain : domain + 1],
      num_examples=client.domain_sizes[domain],
    )

  return part_of


@pytest.fixture(scope="module")
def learn_alone(build, domain_of):
  """Returns `learn(weights, client, domain, round_num)`: FedAvg on a domain.

  With as many steps as on three domains.
  """
  hparams = algorithms.hparams(
    "fed_avg", local_steps=3, batch_size=4, learning_rate=0.1
  )

  def learn(weights, client, domain, round_num):
    part = domain_of(client, domain)
    return build(hparams).train_client(weights, (), part, round_num)

  return learn


@pytest.fixture(scope="session")
def round_by_hand():
  """Returns `run(functions, weights, states, clients, round_num)`.

  It gives the clients' results, the server's new weights, and the results of
  the second phase, if there is one. The mean is uniform.
  """

  def run(functions, weights, states, clients, round_num, num_clients=4):
    results = [
      functions.train_client(weights, *pair, round_num)
      for pair in zip(states, clients, strict=True)
    ]
    new = functions.update_server(
      weights,
      trees.mean(*(result.update for result in results)),
      client_slots.total(
        [result.plaintext_sum for result in results], num_clients
      ),
      round_num,
    )
    personal = functions.personalize_client and [
      functions.personalize_client(new, result.client_state, client, round_num)
      for result, client in zip(results, clients, strict=True)
    ]
    return results, new, personal

  return run


@pytest.fixture(scope="module")
def personal(initial):
  """A personal model far from the server's."""
  return initial(1)


@pytest.fixture(scope="session")
def oracle(run_in_graph):
  """The model, the losses and gradient descent in NumPy, in float64.

  And `batches(client, number, *words, size=4)`: those that are drawn with the
  seed of the client into which the words are folded; `of_training` takes the
  words that come after the purpose.
  """

  def batches(client, number, *words, size=4):
    def draw(data):
      seed = randomness.fold(data.seed, *words)
      drawn = local_training.pooled_batches(data, int(number), size, seed)
      return [drawn(visit) for visit in range(number)]

    return run_in_graph(draw, client)

  def of_training(client, number, *words, size=4):
    return batches(client, number, randomness.Purpose.TRAIN, *words, size=size)

  return types.SimpleNamespace(
    batches=batches,
    of_training=of_training,
    check=_check,
    softmax=_softmax,
    entropy=_entropy,
    embed=_embed,
    classify=_classify,
    predict=_predict,
    moments=_moments,
    normalize=_normalize,
    cross_entropy=_cross_entropy,
    losses=_losses,
    example_losses=_example_losses,
    estimated_classes=_estimated_classes,
    risk=_risk,
    class_means=_class_means,
    distances=_distances,
    alignment_loss=_alignment_loss,
    gradient=_gradient,
    descend=_descend,
    work_network=_work_network,
    train_work_network=_train_work_network,
  )


def _module_of(hparams):
  return importlib.import_module(type(hparams).__module__)


@pytest.fixture(scope="module")
def build(model, run_in_graph):
  """Returns `build(hparams, model=model, num_clients=4, **changes)`.

  It gives the functions of the algorithm whose hyper-parameters they are, which
  run in a graph. Round numbers may be Python's; for `update_server` one stands
  in place of `info`.
  """

  def in_graph(function):
    def work(*arguments):
      if not tf.executing_eagerly():
        return function(*arguments)
      return run_in_graph(
        function, *(np.int32(a) if isinstance(a, int) else a for a in arguments)
      )

    return function and work

  built = {}

  def functions_of(
    hparams, model=model, num_clients=forms.NUM_CLIENTS, **changes
  ):
    hparams = dataclasses.replace(hparams, **changes)
    key = hparams, id(model), num_clients
    if key not in built:
      spec = algorithms.spec_builder(_module_of(hparams), num_clients)(
        model, hparams
      )
      surveys = tuple(
        survey._replace(survey_client=in_graph(survey.survey_client))
        for survey in spec.surveys
      )
      update = spec.update_server and running.with_info(spec.update_server)
      spec = spec._replace(surveys=surveys, update_server=update)
      functions = {
        name: in_graph(value)
        for name, value in spec._asdict().items()
        if callable(value)
      }
      # With the model, whose id is not given to another one then.
      built[key] = spec._replace(**functions), model
    return built[key][0]

  return functions_of


@pytest.fixture(scope="module")
def start(model, context):
  """Returns `start(hparams, data, num_rounds=0, model=model, **options)`.

  It gives a run of the algorithm whose hyper-parameters they are, after some
  rounds. The options are those of `rounds.Rounds`.
  """
  del context
  built = {}

  def run(hparams, data, num_rounds=0, model=model, run_seed=0, **options):
    key = hparams, id(model), len(data)
    if key not in built:
      algorithm = algorithms.build(
        _module_of(hparams), model, hparams, num_clients=len(data)
      )
      built[key] = algorithm, model
    current = rounds.Rounds(built[key][0], data, run_seed=run_seed, **options)
    for _ in range(num_rounds):
      current.step()
    return current

  return run


@pytest.fixture(scope="session")
def rounds_alone():
  """Returns `run(functions, client, timesteps)`: rounds of one client.

  They are outside of TFF, whose compiler takes most of a test's time. It gives
  the weights, the client's state and the loss after each round; of two phases,
  the loss of the second. In place of a time step there may be its data.
  """

  def run(functions, client, timesteps):
    weights = functions.initial_weights(client.seed)
    state = functions.initial_client_state(client.seed, weights)
    after = []
    for round_num, data in enumerate(timesteps):
      if not isinstance(data, tuple):
        data = client._replace(timestep=np.int32(data))
      result = functions.train_client(weights, state, data, round_num)
      weights = trees.add(weights, result.update)
      if functions.personalize_client is not None:
        result = functions.personalize_client(
          weights, result.client_state, data, round_num
        )
      state = result.client_state
      after.append((weights, state, result.loss))
    return after

  return run
