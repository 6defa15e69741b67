"""Algorithms as learning processes for TFF's own programs.

A `tff.learning.templates.LearningProcess` does not support personal state: the
clients of the algorithm must keep nothing between rounds, and a round must have
one phase. The caller chooses the form of the clients' data:

  * "arrays": `ClientDataset`, as everywhere in this package. State,
    weights and metrics are the algorithm's own.
  * sequences, the form of `tf.data` pipelines and of the data sources of
    `tff.program`. State, weights and metrics then have the form that
    `tff.learning.programs.train_model` and its evaluation require.

Choices:
  * `tff.learning.programs.train_model` needs metrics at `client_work/train`,
    and weights that the evaluation's `set_model_weights` takes. On sequences a
    process has both, and the state of TFF's own algorithms.
"""

from __future__ import annotations

import collections
from typing import Any
from typing import TYPE_CHECKING

import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.data import client_dataset
from tff_shift.learning import frozen_weights
from tff_shift.learning import local_training
from tff_shift.learning import phases
from tff_shift.learning import randomness
from tff_shift.learning.stock_tff import sequences
from tff_shift.models import split_model

if TYPE_CHECKING:
  from tff_shift.learning import algorithm as algorithm_lib

ARRAYS = "arrays"
SEQUENCE = "sequence"


def as_learning_process(
  algorithm: algorithm_lib.FederatedAlgorithm,
  seed: int = 0,
  client_data: Any = ARRAYS,
) -> tff.learning.templates.LearningProcess:
  """Makes a process for TFF's own training loops and programs.

  Args:
    algorithm: An algorithm whose rounds have one phase and whose clients keep
      no state.
    seed: The run's seed. It determines the initial weights and, for
      sequences, the clients' random draws.
    client_data: The form of a client's data: "arrays", a
      `ClientDataset`; "sequence", a `tf.data.Dataset` of examples
      `(x, y)`; or the `element_spec` of a pipeline with other elements, see
      `sequences.check`: batches, mappings, or examples with their domain
      (required by algorithms that step from domain to domain).

  Returns:
    A `LearningProcess` whose `next` takes `(S@SERVER, {D}@CLIENTS)`, with D
    the arrays or a sequence. On sequences its state is a
    `tff.learning.templates.LearningAlgorithmState` with
    `tff.learning.models.ModelWeights`, see `server_state`.

  Raises:
    ValueError: If clients keep a personal state between rounds, a round has
      more than one phase, or the model has frozen weights: a learning process
      does not support these. If `client_data` does not fit the algorithm.

  Examples:
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> process = ts.as_learning_process(ts.build_algorithm("fed_avg", model))
    >>> print(process.next.type_signature.result.metrics)
    <loss=float32,num_clients=float32,num_diverged=float32>@SERVER
  """
  phase = _the_phase(algorithm)
  server_type, _, data_type = phase.type_signature.parameter
  collect = None
  if not (isinstance(client_data, str) and client_data == ARRAYS):
    collect = _collection(algorithm, data_type.member, seed, client_data)

  @tff.tensorflow.computation
  def seed_value():
    return tf.constant(randomness.server_seed(seed))

  @tff.federated_computation
  def initialize():
    return algorithm.initialize(tff.federated_eval(seed_value, tff.SERVER))

  @tff.federated_computation(server_type, data_type)
  def run_round(state, data):
    nothing = tff.federated_value((), tff.CLIENTS)
    state, _, metrics = phase(state, nothing, data)
    return tff.learning.templates.LearningProcessOutput(state, metrics)

  if collect is None:
    return _process(initialize, run_round, "weights")
  sequence_type = collect.type_signature.parameter

  to_stock = tff.tensorflow.computation(_stock_state, server_type.member)
  stock_type = to_stock.type_signature.result
  to_own = tff.tensorflow.computation(
    lambda state: server_state(algorithm, state), stock_type
  )

  @tff.federated_computation
  def initialize_stock():
    return tff.federated_map(to_stock, initialize())

  @tff.federated_computation(
    tff.FederatedType(stock_type, tff.SERVER),
    tff.FederatedType(sequence_type, tff.CLIENTS),
  )
  def run_stock_round(state, client_sequences):
    output = run_round(
      tff.federated_map(to_own, state),
      tff.federated_map(collect, client_sequences),
    )
    metrics = collections.OrderedDict(
      client_work=collections.OrderedDict(train=output.metrics)
    )
    return tff.learning.templates.LearningProcessOutput(
      tff.federated_map(to_stock, output.state), tff.federated_zip(metrics)
    )

  return _process(initialize_stock, run_stock_round, "global_model_weights")


def server_state(
  algorithm: algorithm_lib.FederatedAlgorithm,
  state: tff.learning.templates.LearningAlgorithmState,
) -> phases.ServerState:
  """Converts the state of a process on sequences to the algorithm's own state.

  `evaluate_clients` and `evaluate_server` take the result.

  Args:
    algorithm: The algorithm from which the process was made.
    state: A state of the process, arrays or tensors.

  Returns:
    The algorithm's state, with the same values.
  """
  server_type = algorithm.initialize.type_signature.result.member
  specs = tff.types.type_to_tf_tensor_specs(server_type.weights)
  return phases.ServerState(
    tf.nest.pack_sequence_as(specs, state.global_model_weights.trainable),
    state.aggregator,
    state.client_work,
    optimizer=state.finalizer[0],
    memory=state.finalizer[1],
  )


def functional_model(
  model: split_model.SplitModel, element_spec: Any = None
) -> tff.learning.models.FunctionalModel:
  """Makes a model for `tff.learning.algorithms.build_fed_eval`.

  It predicts like the server in algorithms that share the whole model, such as
  FedAvg and FedEvp, with the weights of their process on sequences.

  Args:
    model: The model.
    element_spec: The batches for evaluation, `(x, y)` or a mapping with these
      names, as in `tf.data.Dataset.element_spec`. None: `(x, y)`, of the
      model's dtype and int32.

  Returns:
    The model; its metrics are `loss` (cross-entropy), `accuracy` and
    `num_examples`. Its initial weights have seed 0.

  Raises:
    ValueError: If elements are not batches of the model's inputs, or the model
      has batch normalisation or frozen weights.
  """
  if model.statistics:
    raise ValueError(
      f"model {model.name!r} has batch normalisation; a learning process does"
      " not support its running statistics"
    )
  if frozen_weights.has_any(model):
    raise ValueError(
      f"model {model.name!r} has frozen weights, which stock evaluation does"
      " not support"
    )
  data_type = local_training.data_type(model)
  if element_spec is None:
    element_spec = tuple(
      tf.TensorSpec([None, *each.shape], each.dtype)
      for each in sequences.examples(data_type)
    )
  elements = sequences.check(element_spec, data_type)
  if not elements.are_batches or elements.has_domains:
    raise ValueError(
      "element_spec: stock evaluation takes batches (x, y); end the pipeline"
      " with .batch()"
    )
  names = model.weight_names()
  initial = tf.function(model.initial_weights)(
    tf.constant(randomness.server_seed(0))
  )

  @tf.function
  def predict(weights, x, training):
    del training  # Models behave the same in both modes.
    trainable, _ = weights
    return model.predict(
      tf.nest.pack_sequence_as(names, trainable), tf.cast(x, model.input_dtype)
    )

  def loss(output, label, sample_weight=None):
    del sample_weight  # Examples are unweighted.
    return local_training.cross_entropy(output, label)

  return tff.learning.models.FunctionalModel(
    initial_weights=(
      tuple(each.numpy() for each in tf.nest.flatten(initial)),
      (),
    ),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    metrics_fns=tff.learning.metrics.create_functional_metric_fns(
      lambda: collections.OrderedDict(
        loss=tf.keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
        accuracy=tf.keras.metrics.SparseCategoricalAccuracy(),
        num_examples=tff.learning.metrics.NumExamplesCounter(),
      )
    ),
    input_spec=element_spec,
  )


def _the_phase(algorithm: algorithm_lib.FederatedAlgorithm) -> tff.Computation:
  """Returns the only phase of an algorithm; refuses other algorithms."""
  if not algorithm.is_stateless or len(algorithm.phases) != 1:
    raise ValueError(
      f"{algorithm.name} keeps personal state at clients or does not have"
      " exactly one phase per round; a LearningProcess supports neither"
    )
  phase = algorithm.phases[0]
  if isinstance(phase, frozen_weights.WithFrozen):
    raise ValueError(
      f"the model of {algorithm.name} has frozen weights, which a"
      " LearningProcess does not support"
    )
  return phase


def _collection(
  algorithm: algorithm_lib.FederatedAlgorithm,
  data_type: tff.Type,
  seed: int,
  client_data: Any,
) -> tff.Computation:
  """Builds the conversion of a client's sequence to the algorithm's data."""
  if isinstance(client_data, str) and client_data != SEQUENCE:
    raise ValueError(
      f"client_data must be {ARRAYS!r}, {SEQUENCE!r} or the element_spec of a"
      f" pipeline, got {client_data!r}"
    )
  if not issubclass(data_type.python_container, client_dataset.ClientDataset):
    raise ValueError(
      f"clients of {algorithm.name} have more than examples and classes, which"
      " a sequence of examples cannot contain"
    )
  if isinstance(client_data, str):
    client_data = sequences.examples(data_type)
  elements = sequences.check(client_data, data_type)
  if algorithm.min_source_domains > 1 and not elements.has_domains:
    raise ValueError(
      f"{algorithm.name} steps from domain to domain: the elements must be (x,"
      " y, domain), and client_data their element_spec"
    )
  return sequences.collection(
    elements, data_type, seed, algorithm.min_source_domains
  )


def _stock_state(
  state: phases.ServerState,
) -> tff.learning.templates.LearningAlgorithmState:
  """Converts a server state to the form of TFF's own algorithms."""
  return tff.learning.templates.LearningAlgorithmState(
    global_model_weights=tff.learning.models.ModelWeights(
      trainable=tuple(tf.nest.flatten(state.weights)), non_trainable=()
    ),
    distributor=(),
    client_work=state.round_num,
    aggregator=state.aggregator,
    # What only the server has.
    finalizer=(state.optimizer, state.memory),
  )


def _process(
  initialize: tff.Computation, run_round: tff.Computation, weights: str
) -> tff.learning.templates.LearningProcess:
  """Builds a process whose state has its weights in the field `weights`."""
  state_type = initialize.type_signature.result.member

  @tff.tensorflow.computation(state_type)
  def get_model_weights(state):
    return getattr(state, weights)

  @tff.tensorflow.computation(state_type, getattr(state_type, weights))
  def set_model_weights(state, values):
    return state._replace(**{weights: values})

  return tff.learning.templates.LearningProcess(
    initialize, run_round, get_model_weights, set_model_weights
  )
