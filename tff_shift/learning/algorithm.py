"""The one template for every algorithm.

An algorithm is a frozen dataclass of TFF computations. A round is one phase or
more; a phase is a federated computation

    (S@SERVER, {C}@CLIENTS, {D}@CLIENTS) -> <S@SERVER, {C}@CLIENTS, M@SERVER>

with S the server's state, C a client's personal state, D a client's data and M
metrics. What is personal is placed at CLIENTS, so the type of a computation
shows that it does not leave the client. In a phase no aggregate depends on
another: the same computation then runs on one executor and, in TFF's mergeable
form, spread over several.

What an algorithm's file writes is a `AlgorithmSpec`: pure TensorFlow functions
of one client's or the server's tensors. `build` turns them into federated
computations.
"""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift import arguments
from tff_shift.learning import batch_statistics
from tff_shift.learning import evaluation
from tff_shift.learning import frozen_weights
from tff_shift.learning import guidance
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import phases
from tff_shift.learning import randomness
from tff_shift.learning import sizes
from tff_shift.learning.aggregators import factories
from tff_shift.learning.aggregators import update_noise
from tff_shift.models import split_model

# The one door: algorithms need no other module than this one.
ServerState = phases.ServerState
ClientResult = phases.ClientResult
PersonalResult = phases.PersonalResult
# What `RUNNING_STATISTICS` of an algorithm's file may say.
Kept = batch_statistics.Kept
ONE_MODEL = batch_statistics.ONE_MODEL
OWN_MODEL = batch_statistics.OWN_MODEL
TWO_MODELS = batch_statistics.TWO_MODELS
FIXED = batch_statistics.FIXED


class AlgorithmSpec(NamedTuple):
  """What an algorithm computes, as pure TensorFlow functions of tensors.

  A round has up to two phases: clients train and the server combines what they
  send; then, with the server's new weights, clients work on what is personal.
  `weights` are the server's, a nested structure of float32 tensors but for
  `fixed_weights`; `client_state` is a client's own, any nested structure;
  `data` is a client's data, of `examples_type`; `round_num` counts from 0, an
  int32 scalar; a seed is int32 [2].

  Attributes:
    initial_weights: `(seed) -> weights`, what the server holds at round 0.
      Without tensors, clients share nothing.
    train_client: `(weights, client_state, data, round_num) -> ClientResult`.
      None where nothing is ever trained: a round has no phase.
    predict_as_client: `(weights, client_state, data, evaluation_data) ->
      logits` [num_examples, num_classes] float32 of a client's own model.
      `evaluation_data` is a `local_training.ClientData` whose seed is zeros.
      Where there is a `prepare_client`, what it gives takes the place of the
      state.
    predict_as_server: `(weights, summary, evaluation_data) -> logits` of the
      server's model. None where the server has no model.
    initial_client_state: `(seed, weights) -> client_state` of a client that has
      not taken part yet, with its own seed and the server's weights of the
      moment at which the state is asked for: a personal model may start from
      what the server sends first.
    starts_alike: Whether the seed of `initial_client_state` is the run's, that
      of `initial_weights`, and not the client's own. Then all clients draw the
      same, such as a head: those that start apart pull what is shared in
      different directions.
    personalize_client: `(weights, client_state, data, round_num) ->
      PersonalResult`, with the weights that the server has just updated. None:
      a round has one phase.
    prepare_client: `(weights, client_state, data, round_num) -> prepared`: what
      a client works out once, however much it then predicts, such as a
      fine-tuned model; `round_num` is the number of rounds done. It is kept for
      no round. None: nothing.
    update_server: `(weights, mean_update, contribution, round_num) -> weights`,
      with the mean of the clients' updates and the sum of their contributions.
      It does not count in a round of which no client does. None: the mean
      update is added.
    fixed_weights: Names of fields of the weights, then a named tuple, that no
      round changes, such as a head that nobody trains.
    summarize_client: `(weights, data) -> summary`, summed over clients for
      `predict_as_server`; empty for most algorithms.
    answer_request: `(weights, request) -> client_state`: what the server sends
      to a client that asks for a new personal state. None: nothing.
    request_type: The type of a request.
    can_predict: `(data) -> bool`, whether a client has what its own model needs
      to predict; who has not is left out of `evaluate_clients`. None: all can.
    guide_queries: `(weights, x) -> logits` over the clients, [num_queries,
      num_clients] float32. None: the server cannot tell who knows best.
    examples_type: The type of a client's data. None:
      `local_training.data_type(model)`.
    num_examples: `(data) -> number`, the client's weight in the mean where
      `client_weighting` is `num_examples`. Who has none counts nowhere.
    max_clients: How many clients the functions can tell apart, by ids from 0.
      None: they tell nobody apart.
    normalizers: Which weights scale and shift after batch normalisation, bools
      in the structure of the weights. None: the weights begin with those of
      the model, and those of `SplitModel.normalizers` do.
  """

  initial_weights: Callable[[Any], Any]
  train_client: Callable[[Any, Any, Any, Any], ClientResult] | None
  predict_as_client: Callable[[Any, Any, Any, Any], tf.Tensor]
  predict_as_server: Callable[[Any, Any, Any], tf.Tensor] | None = None
  initial_client_state: Callable[[Any, Any], Any] = lambda seed, weights: ()
  starts_alike: bool = False
  personalize_client: Callable[[Any, Any, Any, Any], PersonalResult] | None = (
    None
  )
  prepare_client: Callable[[Any, Any, Any, Any], Any] | None = None
  update_server: Callable[[Any, Any, Any, Any], Any] | None = None
  fixed_weights: tuple[str, ...] = ()
  summarize_client: Callable[[Any, Any], Any] = lambda weights, data: ()
  answer_request: Callable[[Any, Any], Any] | None = None
  request_type: tff.Type | None = None
  can_predict: Callable[[Any], tf.Tensor] | None = None
  guide_queries: Callable[[Any, Any], tf.Tensor] | None = None
  examples_type: tff.Type | None = None
  num_examples: Callable[[Any], tf.Tensor] = lambda data: tf.shape(data.y)[0]
  max_clients: int | None = None
  normalizers: Any = None


@dataclasses.dataclass(frozen=True)
class FederatedAlgorithm:
  """An algorithm as TFF computations.

  S is the server's state, C a client's personal state, D the data that a client
  trains on or adapts to and E data to predict, a `local_training.ClientData`.
  Where the model has frozen weights, the computations are
  `frozen_weights.WithFrozen`: they are called in the same way.

  Attributes:
    name: The name of the algorithm, its file's name.
    num_classes: The number of classes of the model.
    model: The model.
    hparams: The hyper-parameters.
    spec: The functions that the computations are made of, see
      `frozen_weights.bind`.
    client_weight: `(data) -> number`, what a client counts in the server's
      mean unless its result says otherwise.
    initialize: `(seed@SERVER) -> S@SERVER`; seed is int32 [2].
    initialize_client: `(S@SERVER, {seed}@CLIENTS) -> {C}@CLIENTS`, the state of
      clients that have not taken part yet.
    phases: The phases of a round, `(S@SERVER, {C}@CLIENTS, {D}@CLIENTS) ->
      <S@SERVER, {C}@CLIENTS, metrics@SERVER>`.
    evaluate_clients: `(S@SERVER, {C}@CLIENTS, {D}@CLIENTS, {E}@CLIENTS) ->
      metrics@SERVER`: each client predicts its own E with its own model. The
      metrics are those of `evaluation.finalize`.
    evaluate_server: `(S@SERVER, {D}@CLIENTS, E@SERVER) -> metrics@SERVER`: the
      server predicts E with the shared model. None where the server has none,
      or needs sums over clients for it that the aggregator would not hide.
    summarize: `(S@SERVER, {D}@CLIENTS) -> summary@SERVER`: the sums over
      clients that `work.predict_as_server` takes. None where it needs none, or
      there is no `evaluate_server`.
    request: `(S@SERVER, R@SERVER) -> C@SERVER`: a client that sends the request
      R is sent a new personal state for it. None where there is no such thing.
    guidance: How queries that reach the server are answered, see
      `guidance.Guidance`. None unless it was asked for.
    is_stateless: Whether C is empty.
    is_local: Whether the server's weights are empty: clients share nothing.
    min_source_domains: How many domains the examples that a client trains on
      must at least have.
    max_clients: See `AlgorithmSpec`.
    noise_ratio: How much longer the aggregator's noise is than the longest
      update, see `update_noise.ratio`.
  """

  name: str
  num_classes: int
  model: split_model.SplitModel
  hparams: hyperparameters.LocalWorkHParams
  spec: AlgorithmSpec
  client_weight: Callable[[Any], Any]
  initialize: tff.Computation
  initialize_client: tff.Computation
  phases: tuple[tff.Computation, ...]
  evaluate_clients: tff.Computation
  evaluate_server: tff.Computation | None
  summarize: tff.Computation | None
  request: tff.Computation | None
  guidance: guidance.Guidance | None
  is_stateless: bool
  is_local: bool
  min_source_domains: int = 1
  max_clients: int | None = None
  noise_ratio: float = 0.0

  def __repr__(self):
    return (
      f"FederatedAlgorithm({self.name!r}, model={self.model.name!r},"
      f" hparams={self.hparams!r})"
    )


def build(
  name: str,
  build_spec: Callable[
    [split_model.SplitModel, hyperparameters.LocalWorkHParams], AlgorithmSpec
  ],
  model: split_model.SplitModel,
  hparams: hyperparameters.LocalWorkHParams,
  *,
  requirements: factories.AggregationRequirements = factories.NO_REQUIREMENTS,
  aggregator: (
    tff.aggregators.WeightedAggregationFactory
    | tff.aggregators.UnweightedAggregationFactory
    | None
  ) = None,
  num_queries: int | None = None,
  num_evaluation_domains: int = 1,
  min_source_domains: int = 1,
  running_statistics: batch_statistics.Kept | None = None,
) -> FederatedAlgorithm:
  """Builds an algorithm from its work.

  Args:
    name: The algorithm's name.
    build_spec: `(model, hparams) -> Work`. Called once or, for a model with
      frozen weights, whenever a function is traced, with the model that has the
      tensors of the graph in their place.
    model: The model; its inputs fix the type of the clients' data.
    hparams: Hyper-parameters; they are checked before `build_spec` is called.
    requirements: What the algorithm requires of an aggregator.
    aggregator: A factory that averages updates, such as `factories.build`
      gives. None: `tff.aggregators.MeanFactory()`. One without weights is made
      into one that ignores them, if `hparams.client_weighting` is `uniform`.
    num_queries: The number of queries that are answered at a time, at least 1.
      None: the algorithm is built without `guidance`.
    num_evaluation_domains: The number of domains of the data to predict, at
      least 1.
    min_source_domains: See `FederatedAlgorithm`.
    running_statistics: Whose the running statistics of batch normalisation
      are. None: the model must have none, see `batch_statistics`.

  Returns:
    A `FederatedAlgorithm`.

  Raises:
    ValueError: If a hyper-parameter or a number has a value that is not
      allowed, or the algorithm cannot do with the aggregator or the model.
    TypeError: If the functions do not fit together, or send what `needs` does
      not speak of.
  """
  hyperparameters.validate(hparams)
  num_evaluation_domains = arguments.integer(
    "num_evaluation_domains", num_evaluation_domains
  )
  if num_queries is not None:
    num_queries = arguments.integer("num_queries", num_queries)
  aggregator = factories.wrap(aggregator)
  traits = aggregator.traits
  batch_statistics.check_is_trained(name, running_statistics, model)
  requirements = batch_statistics.requirements(
    requirements, running_statistics, model, hparams
  )
  factories.check(name, requirements, traits, hparams)
  functions = frozen_weights.bind(
    lambda *each: _with_statistics(name, build_spec, running_statistics, *each),
    model,
    hparams,
  )
  seed_type = randomness.SEED_TYPE
  initial_weights, initial_client_state = _initial_states(
    name, functions, model, hparams
  )
  weights_type = initial_weights.type_signature.result
  shared_type = frozen_weights.shared_type(weights_type, model)
  client_type = initial_client_state.type_signature.result
  examples_type = functions.examples_type or local_training.data_type(model)
  evaluation_type = local_training.data_type(model, num_evaluation_domains)
  is_local = not tff.structure.flatten(weights_type)
  client_types = shared_type, client_type, examples_type

  def has_examples(data):
    """Returns 0 for a client without examples, who has taught nothing, or 1."""
    if not hasattr(data, "y"):
      return 1  # The data are of another kind.
    return tf.minimum(functions.num_examples(data), 1)

  def client_weight(data):
    """Returns what a client counts in the server's mean."""
    if is_local or hparams.client_weighting == "uniform":
      return has_examples(data)
    return functions.num_examples(data)

  training, update_type = None, weights_type
  if functions.train_client is not None:
    training = phases.client_training(
      *client_types,
      functions.train_client,
      requirements,
      client_weight,
      has_examples,
    )
    update_type = training.type_signature.result[0]
  update_noise.warn(name, traits.noise, update_type)
  aggregate = aggregator.create(update_type, tff.TensorType(np.float32))

  @tff.federated_computation(tff.FederatedType(seed_type, tff.SERVER))
  def initialize(seed):
    return tff.federated_zip(
      ServerState(
        tff.federated_map(initial_weights, seed),
        aggregate.initialize(),
        tff.federated_value(0, tff.SERVER),
        seed if functions.starts_alike else tff.federated_value((), tff.SERVER),
      )
    )

  server_type = frozen_weights.server_type(
    initialize.type_signature.result, model
  )

  @tff.federated_computation(
    server_type, tff.FederatedType(seed_type, tff.CLIENTS)
  )
  def initialize_client(server, seeds):
    shared = tff.federated_broadcast(frozen_weights.shared(server))
    if functions.starts_alike:
      seeds = tff.federated_broadcast(frozen_weights.state(server).seed)
    return tff.federated_map(initial_client_state, (shared, seeds))

  round_phases = []
  if training is not None:
    round_phases.append(
      phases.training_phase(
        server_type,
        training,
        aggregate,
        functions.update_server,
        is_last=functions.personalize_client is None,
      )
    )
  if functions.personalize_client is not None:
    round_phases.append(
      phases.personal_phase(
        server_type,
        *client_types,
        functions.personalize_client,
        has_examples,
      )
    )
  evaluate_server, summarize = None, None
  if functions.predict_as_server is not None:
    summarize = evaluation.client_summary(
      server_type, shared_type, examples_type, functions.summarize_client
    )
    if summarize is None or not traits.hides_clients:
      evaluate_server = evaluation.server_evaluation(
        server_type,
        shared_type,
        examples_type,
        evaluation_type,
        functions.predict_as_server,
        summarize,
      )
    else:
      summarize = None
  request = None
  if functions.answer_request is not None:
    request = _request(
      server_type,
      shared_type,
      client_type,
      functions.answer_request,
      functions.request_type,
    )
  answering = None
  if num_queries is not None:
    answering = guidance.build_guidance(
      model,
      server_type,
      *client_types,
      num_queries,
      functions.prepare_client,
      functions.predict_as_client,
      functions.guide_queries,
      client_weight,
    )
  return frozen_weights.attach(
    FederatedAlgorithm(
      name=name,
      num_classes=model.num_classes,
      model=model,
      hparams=hparams,
      spec=functions,
      client_weight=client_weight,
      initialize=initialize,
      initialize_client=initialize_client,
      phases=tuple(round_phases),
      evaluate_clients=evaluation.client_evaluation(
        server_type,
        *client_types,
        evaluation_type,
        functions.prepare_client,
        functions.predict_as_client,
        functions.can_predict,
      ),
      evaluate_server=evaluate_server,
      summarize=summarize,
      request=request,
      guidance=answering,
      is_stateless=not tff.structure.flatten(client_type),
      is_local=is_local,
      min_source_domains=min_source_domains,
      max_clients=functions.max_clients,
      noise_ratio=update_noise.ratio(traits.noise, update_type),
    ),
    model,
  )


def _with_statistics(
  name: str,
  build_spec: Callable[..., AlgorithmSpec],
  running_statistics: batch_statistics.Kept | None,
  model: split_model.SplitModel,
  hparams: hyperparameters.LocalWorkHParams,
) -> AlgorithmSpec:
  """Makes the functions of an algorithm, with the statistics of the model."""
  functions = build_spec(model, hparams)
  if not isinstance(functions, AlgorithmSpec):
    raise TypeError(
      "build(model, hparams) must return an algorithm.AlgorithmSpec; it"
      f" returned {type(functions).__name__}"
    )
  batch_statistics.check(name, running_statistics, model, hparams)
  if not model.statistics or running_statistics == FIXED:
    return functions
  return batch_statistics.bind(
    name,
    running_statistics,
    functions,
    model,
    hparams,
    functions.num_examples
    if hparams.client_weighting == "num_examples"
    else lambda data: tf.minimum(functions.num_examples(data), 1),
  )


def check_sizes(
  name: str,
  build_spec: Callable[
    [split_model.SplitModel, hyperparameters.LocalWorkHParams], AlgorithmSpec
  ],
  model: split_model.SplitModel,
  hparams: hyperparameters.LocalWorkHParams,
  running_statistics: batch_statistics.Kept | None = None,
) -> None:
  """Refuses what `build` would refuse because it cannot fit in memory.

  Args:
    name: See `build`, as for all arguments.
    build_spec: Likewise.
    model: Likewise.
    hparams: Likewise.
    running_statistics: See `build`.

  Raises:
    ValueError: In one line.
  """
  _initial_states(
    name,
    frozen_weights.bind(
      lambda *each: _with_statistics(
        name, build_spec, running_statistics, *each
      ),
      model,
      hparams,
    ),
    model,
    hparams,
  )


def _initial_states(
  name: str,
  functions: AlgorithmSpec,
  model: split_model.SplitModel,
  hparams: hyperparameters.LocalWorkHParams,
) -> tuple[tff.Computation, tff.Computation]:
  """Makes what draws the first weights, and a client's first state."""
  sizes.check_batch(model, hparams)
  initial_weights = tff.tensorflow.computation(
    functions.initial_weights, randomness.SEED_TYPE
  )
  weights_type = initial_weights.type_signature.result
  sizes.check_state(name, "the state of the server", weights_type, hparams)
  initial_client_state = tff.tensorflow.computation(
    lambda shared, seed: functions.initial_client_state(seed, shared),
    frozen_weights.shared_type(weights_type, model),
    randomness.SEED_TYPE,
  )
  client_type = initial_client_state.type_signature.result
  sizes.check_state(name, "the state of a client", client_type, hparams)
  return initial_weights, initial_client_state


def _request(
  server_type, shared_type, client_type, answer_request, request_type
) -> tff.Computation:
  """Builds the server's work for one client that asks for a new state."""
  work = tff.tensorflow.computation(answer_request, shared_type, request_type)
  if not work.type_signature.result.is_equivalent_to(client_type):
    raise TypeError(
      f"answer_request gives {work.type_signature.result}; a client's state"
      f" is {client_type}"
    )

  @tff.federated_computation(
    server_type, tff.FederatedType(request_type, tff.SERVER)
  )
  def request(server, content):
    return tff.federated_map(work, (frozen_weights.shared(server), content))

  return request
