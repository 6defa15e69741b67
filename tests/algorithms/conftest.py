"""What the tests of the algorithms share: tiny clients and a NumPy oracle."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift import algorithms
from tff_shift.learning import adaptation
from tff_shift.learning import local_training
from tff_shift.learning import periods
from tff_shift.learning import randomness
from tff_shift.models import guided_model
from tff_shift.models import split_model

layers = tf.keras.layers

# How many clients a model with a guide tells apart.
NUM_CLIENTS = 4
# How many domains the data to predict have.
NUM_EVALUATION_DOMAINS = 4


@pytest.fixture(scope="session")
def model():
  """A model of which no weight has the shape of an example or of metrics.

  It has a guide that tells four clients apart, which most algorithms ignore.
  Its layers are few: what is built and compiled takes its time for each.
  """

  def backbone():
    return tf.keras.Sequential(
      [
        layers.InputLayer((5,)),
        layers.Dense(8, activation="relu", name="layer1"),
      ]
    )

  def head():
    return tf.keras.Sequential(
      [layers.InputLayer((8,)), layers.Dense(3, name="layer2")]
    )

  return guided_model.with_guide(
    split_model.build_split_model(
      "two_layers", backbone=backbone, head=head, input_dtype=tf.float32
    ),
    num_clients=NUM_CLIENTS,
    width=7,
  )


def _contract_hparams(name):
  """Returns hyper-parameters of an algorithm: few steps, high rates."""
  hparams = algorithms.get(name).HParams()
  values = {
    "batch_size": 4,
    "local_steps": 2,
    "num_hidden": 1,
    "learning_rate": 0.2,
    "smallest_rate": 0.1,
    "eta_min": 0.1,
    "eta_max": 0.3,
  }
  return dataclasses.replace(
    hparams, **{k: v for k, v in values.items() if hasattr(hparams, k)}
  )


@pytest.fixture(scope="session")
def contract_hparams():
  """Returns `make(name)` for the values that the contract is tested with."""
  return _contract_hparams


@pytest.fixture(scope="session", params=algorithms.names())
def built(request, model, context):
  """Every algorithm, one after the other, and the functions it is made of.

  For the session: then the tests of one algorithm, of whatever file, follow on
  each other, and it is built once.
  """
  name, hparams = request.param, _contract_hparams(request.param)
  return types.SimpleNamespace(
    name=name,
    algorithm=algorithms.build(
      name, model, hparams, num_evaluation_domains=NUM_EVALUATION_DOMAINS
    ),
    functions=algorithms.get(name).work(model, hparams),
    num_domains=NUM_EVALUATION_DOMAINS,
  )


def _make_client(client_id, domain_sizes, y=None, run_seed=0):
  generator = np.random.default_rng([run_seed, client_id])
  num_examples = sum(domain_sizes)
  if y is None:
    y = generator.integers(0, 3, num_examples)
  return local_training.ClientData(
    x=generator.normal(size=(num_examples, 5)).astype(np.float32),
    y=np.asarray(y, np.int32),
    domain_sizes=np.array(domain_sizes, np.int32),
    seed=randomness.client_seed(run_seed, client_id),
    client_id=np.int32(client_id % NUM_CLIENTS),
  )


@pytest.fixture(scope="session")
def make_client():
  """Returns `make(client_id, domain_sizes, y=None)` for random examples."""
  return _make_client


def _make_adapting_client(client_id, num_initial, num_stream, run_seed=0):
  """Makes random data to adapt to, of the shapes of `_make_client`."""
  generator = np.random.default_rng([run_seed, client_id, 1])
  confusion = np.eye(3) + 0.1 * generator.random((3, 3))
  return adaptation.AdaptationData(
    x=generator.normal(size=(num_initial, 5)).astype(np.float32),
    # Every class occurs.
    y=np.arange(num_initial, dtype=np.int32) % 3,
    stream_x=generator.normal(size=(num_stream, 5)).astype(np.float32),
    timestep=np.int32(1),
    confusion=(confusion / confusion.sum(axis=0)).astype(np.float32),
    seed=randomness.client_seed(run_seed, client_id),
  )


@pytest.fixture(scope="session")
def make_adapting_client():
  """Returns `make(client_id, num_initial, num_stream)` for random data."""
  return _make_adapting_client


def _make_period_client(
  client_id, num_examples, representation_size, run_seed=0
):
  """Makes random data of a period; their representation is of order 1."""
  generator = np.random.default_rng([run_seed, client_id, 2])
  representation = generator.normal(size=representation_size)
  return periods.PeriodData(
    *_make_client(client_id, [num_examples], run_seed=run_seed),
    representation=representation.astype(np.float32),
  )


@pytest.fixture(scope="session")
def make_period_client():
  """Returns `make(client_id, num_examples, representation_size)`."""
  return _make_period_client


def _client_data_type(algorithm):
  return algorithm.evaluate_clients.type_signature.parameter[2].member


def _make_client_of(algorithm, client_id, more=0):
  """Makes random data of the kind that an algorithm takes.

  They have three domains, a stream or a period; `more` is how many examples a
  client has more than the smallest one.
  """
  data_type = _client_data_type(algorithm)
  make = {
    local_training.ClientData: lambda: _make_client(
      client_id, [5 + more, 7, 6]
    ),
    adaptation.AdaptationData: lambda: _make_adapting_client(
      client_id, 9 + more, 6 + more
    ),
    periods.PeriodData: lambda: _make_period_client(
      client_id, 9 + more, *data_type.representation.shape
    ),
  }
  return make[data_type.python_container]()


def _expected_data_type(algorithm, model):
  """Returns the type that the data of an algorithm's kind ought to have."""
  data_type = _client_data_type(algorithm)
  expected = {
    local_training.ClientData: lambda: local_training.data_type(model),
    adaptation.AdaptationData: lambda: adaptation.data_type(model),
    periods.PeriodData: lambda: periods.data_type(
      model, *data_type.representation.shape
    ),
  }
  return expected[data_type.python_container]()


@pytest.fixture(scope="session")
def client_data():
  """What clients of an algorithm take, see the functions above."""
  return types.SimpleNamespace(
    kind=lambda algorithm: _client_data_type(algorithm).python_container,
    expected_type=_expected_data_type,
    make=_make_client_of,
  )


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
  """The work-network of a meta-network, layer by layer."""
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


@pytest.fixture(scope="session")
def oracle():
  """The model, the losses and gradient descent in NumPy, in float64."""
  return types.SimpleNamespace(
    embed=_embed,
    classify=_classify,
    predict=_predict,
    cross_entropy=_cross_entropy,
    class_means=_class_means,
    alignment_loss=_alignment_loss,
    gradient=_gradient,
    descend=_descend,
    work_network=_work_network,
    train_work_network=_train_work_network,
  )


def _assert_close(actual, expected, tolerance):
  for one, other in zip(
    tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True
  ):
    np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def _equal_bits(one, other):
  pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
  return all(
    np.asarray(a).dtype == np.asarray(b).dtype
    and np.shape(a) == np.shape(b)
    and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    for a, b in pairs
  )


@pytest.fixture(scope="session")
def compare():
  """`assert_close(a, b, tolerance)`, `equal_bits(a, b)` of structures."""
  return types.SimpleNamespace(
    assert_close=_assert_close, equal_bits=_equal_bits
  )


def _tensors(type_signature):
  """Returns the tensor types within a type, functions left out."""
  if isinstance(type_signature, tff.TensorType):
    return [type_signature]
  if isinstance(type_signature, tff.FederatedType):
    return _tensors(type_signature.member)
  if isinstance(type_signature, tff.StructType):
    return [tensor for part in type_signature for tensor in _tensors(part)]
  assert isinstance(type_signature, tff.FunctionType), type_signature
  return []


def _placed(type_signature, placement):
  """Returns the federated types at a placement within a type."""
  if isinstance(type_signature, tff.FederatedType):
    return [type_signature] if type_signature.placement is placement else []
  if isinstance(type_signature, tff.StructType):
    return [
      found for part in type_signature for found in _placed(part, placement)
    ]
  return []


def _aggregations(computation):
  """Returns the type of everything that turns client values into a server's.

  They are what is left after TFF has compiled the computation for an executor.
  """
  found = []

  def visit(block):
    if isinstance(block, tff.framework.Intrinsic):
      signature = block.type_signature
      if _placed(signature.parameter, tff.CLIENTS) and _placed(
        signature.result, tff.SERVER
      ):
        found.append(signature)
    return block, False

  native = tff.backends.native.desugar_and_transform_to_native(computation)
  tff.framework.transform_postorder(native.to_building_block(), visit)
  return found


def _sent_tensors(signatures):
  """Returns the types of what clients put into aggregations."""
  return [
    tensor
    for signature in signatures
    for value in _placed(signature.parameter, tff.CLIENTS)
    for tensor in _tensors(value)
  ]


@pytest.fixture(scope="session")
def type_walk():
  """What is in TFF's types and computations, see the functions above."""
  return types.SimpleNamespace(
    tensors=_tensors,
    placed=_placed,
    aggregations=_aggregations,
    sent_tensors=_sent_tensors,
  )
