"""The template of every algorithm: TFF computations from TensorFlow functions.

An algorithm is a frozen dataclass of TFF computations. A round has one or more
phases; a phase is a federated computation

    (S@SERVER, {C}@CLIENTS, {D}@CLIENTS) -> <S@SERVER, {C}@CLIENTS, M@SERVER>

where S is the server state, C a client's personal state, D a client's data and
M the metrics. Personal state is placed at CLIENTS: the type of a computation
shows that it does not leave the client. No aggregate of a phase depends on
another one. The same computation therefore runs on one executor or, in TFF's
mergeable form, on several.

An algorithm's file defines an `AlgorithmSpec`: pure TensorFlow functions of the
tensors of one client or of the server. `build` turns them into federated
computations.

Choices:
  * The functions are a record, as in optax: pairs of functions, and everything
    else is written once around them.
  * A client's first state is a function of its seed, or of the run's seed if
    all clients start equal (`starts_alike`; the server state then has that
    seed), and of the server's weights when the state is requested. A personal
    model can therefore start from the weights that the server sends in the
    client's first round, and a client that never took part predicts with the
    current server model.
  * If the server has no head (FedRep, FedDRM, FLUTE, FedPAC, ConFREE, FedAS),
    all clients start with the initial head of the run's seed, with which FedAvg
    starts too: the authors' programs send one model to all. With a head drawn
    by each client, FedDRM lost 1.9 points on CIFAR-10.
  * What leaves a client beside its update is its `plaintext_sum`, a plain sum
    over clients under every aggregator. An algorithm that has one declares it
    in `AGGREGATION_REQUIREMENTS` and is refused by aggregators that hide
    clients.
  * `update_server` gets the mean update, the sum and an `UpdateInfo` (round,
    participants that counted, clients in all, the server's step). A round in
    which every client has weight 0 does not call it.
  * A client's own weight (`ClientResult.weight`) needs a weighted aggregator.
"""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import arguments
from tff_shift.learning import batch_statistics
from tff_shift.learning import evaluation
from tff_shift.learning import frozen_weights
from tff_shift.learning import function_types
from tff_shift.learning import guidance
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training
from tff_shift.learning import metric as metric_lib
from tff_shift.learning import phases
from tff_shift.learning import randomness
from tff_shift.learning import sizes
from tff_shift.learning.aggregators import factories
from tff_shift.learning.aggregators import update_noise
from tff_shift.models import split_model

# Re-exported, so that algorithm files need no other module for these.
ServerState = phases.ServerState
ClientResult = function_types.ClientResult
PersonalResult = function_types.PersonalResult
UpdateInfo = function_types.UpdateInfo
Survey = function_types.Survey
# Values of `RUNNING_STATISTICS` in an algorithm's file.
Kept = batch_statistics.Kept
ONE_MODEL = batch_statistics.ONE_MODEL
OWN_MODEL = batch_statistics.OWN_MODEL
TWO_MODELS = batch_statistics.TWO_MODELS
FIXED = batch_statistics.FIXED


class AlgorithmSpec(NamedTuple):
  """An algorithm as pure TensorFlow functions of tensors.

  A round has up to two phases. First, clients train and the server combines
  their updates. Second, clients update their personal state with the new server
  weights. Surveys are further phases, before the training phase.

  `weights` are the server's, a nested structure of float32 tensors except in
  `fixed_weights`. `client_state` is a client's own, any nested structure.
  `data` is a client's data, of `examples_type`. `round_num` counts from 0, an
  int32 scalar. Seeds are int32 [2].

  Attributes:
    initial_weights: `(seed) -> weights`, the server weights at round 0. An
      empty structure: clients share nothing.
    train_client: `(weights, client_state, data, round_num) -> ClientResult`.
      None: the algorithm trains nothing, and a round has no phase.
    predict_as_client: `(weights, client_state, data, evaluation_data) ->
      logits` [num_examples, num_classes] float32 of a client's own model.
      `evaluation_data` is a `ClientDataset` whose seed is zeros.
      With a `prepare_client`, its result replaces `client_state`.
    predict_as_server: `(weights, summary, evaluation_data) -> logits` of the
      server model. None: the server has no model.
    initial_client_state: `(seed, weights) -> client_state` of a client before
      its first round. The seed is the client's. The weights are those of the
      server when the state is created, so that a personal model can start from
      the first model that the client receives.
    starts_alike: Whether `initial_client_state` gets the run's seed (the seed
      of `initial_weights`) instead of the client's. All clients then draw the
      same values, for example the same head. Clients that start from different
      heads pull the shared layers in different directions.
    personalize_client: `(weights, client_state, data, round_num) ->
      PersonalResult`, with the updated server weights. None: a round has one
      phase.
    prepare_client: `(weights, client_state, data, round_num) -> prepared`,
      computed once before a client predicts, for example a fine-tuned model.
      `round_num` is the number of completed rounds. The result is not kept
      between rounds. None: nothing to prepare.
    update_server: `(weights, mean_update, plaintext_sum, info) -> weights`,
      from the mean of the clients' updates, the sum of their
      `ClientResult.plaintext_sum` and an `UpdateInfo`. Its result is ignored in
      a round in which every client has weight 0. None: `info.step(weights,
      mean_update)`. With an `initial_memory`, it returns `(weights, memory)`.
    initial_memory: `(seed) -> memory`, state that only the server has: it is
      not broadcast. The seed is that of `initial_weights`. None: no memory.
    surveys: Phases before the training phase, in order. Each changes the server
      weights, for example the mean gradient that clients then train with.
    fixed_weights: Names of fields of the weights (then a named tuple) that no
      round changes, for example a head that is never trained.
    summarize_client: `(weights, data) -> summary`, summed over clients for
      `predict_as_server`; empty for most algorithms.
    answer_request: `(weights, request) -> client_state`, the server's answer to
      a client that requests a new personal state. None: no requests.
    request_type: The type of a request.
    can_predict: `(data) -> bool`, whether a client has the data that its own
      model needs to predict. `evaluate_clients` skips the other clients. None:
      all clients can predict.
    guide_queries: `(weights, x) -> logits` over the clients, [num_queries,
      num_clients] float32. None: the server cannot rank clients for a query.
    examples_type: The type of a client's data. None:
      `local_training.data_type(model)`.
    num_examples: `(data) -> number`, the client's weight in the mean if
      `client_weighting` is `num_examples`. Clients without examples get weight
      0.
    max_clients: The number of clients that the functions can distinguish, by
      ids from 0. None: the functions do not use client ids.
    normalizers: Marks the scales and shifts of batch normalisation, bools in
      the structure of the weights. None: the weights begin with the model's
      weights, of which `SplitModel.normalizers` are marked.
    predicts_batches: Whether the logits of an example depend on the other
      examples of its batch, for clients. Each domain of the evaluation data is
      then a batch, see `evaluation.predict_as_one`. Such an algorithm cannot
      answer single queries.
  """

  initial_weights: function_types.InitialWeightsFn
  train_client: function_types.TrainClientFn | None
  predict_as_client: function_types.PredictAsClientFn
  predict_as_server: function_types.PredictAsServerFn | None = None
  initial_client_state: function_types.InitialClientStateFn = (
    lambda seed, weights: ()
  )
  starts_alike: bool = False
  personalize_client: function_types.PersonalizeClientFn | None = None
  prepare_client: function_types.PrepareClientFn | None = None
  update_server: function_types.UpdateServerFn | None = None
  initial_memory: function_types.InitialMemoryFn | None = None
  surveys: tuple[Survey, ...] = ()
  fixed_weights: tuple[str, ...] = ()
  summarize_client: function_types.SummarizeClientFn = (
    local_training.allows_padding(lambda weights, data: ())
  )
  answer_request: function_types.AnswerRequestFn | None = None
  request_type: tff.Type | None = None
  can_predict: function_types.CanPredictFn | None = None
  guide_queries: function_types.GuideQueriesFn | None = None
  examples_type: tff.Type | None = None
  num_examples: function_types.ClientWeightFn = local_training.allows_padding(
    lambda data: data.num_examples
  )
  max_clients: int | None = None
  normalizers: Any = None
  predicts_batches: bool = False


class FirstStates(list):
  """The states of clients of which none has taken part in a round."""


class Start(NamedTuple):
  """The arguments of a phase, in order.

  Attributes:
    server_state: The server's state.
    client_states: The state of each client if it takes part in the first round.
      Of clients that join later, see `FederatedAlgorithm.join_clients`.
    data: The data of each client.
  """

  server_state: ServerState
  client_states: FirstStates
  data: list[Any]


@dataclasses.dataclass(frozen=True)
class FederatedAlgorithm:
  """An algorithm as TFF computations.

  S is the server state, C a client's personal state, D the data that a client
  trains on or adapts to and E the evaluation data, a
  `ClientDataset`. If the model has frozen weights, the computations
  are `frozen_weights.WithFrozen`, which are called in the same way.

  Attributes:
    name: The name of the algorithm and of its file.
    num_classes: The number of classes of the model.
    model: The model.
    hparams: The hyper-parameters.
    spec: The functions inside the computations, see `frozen_weights.bind`.
    client_weight: `(data) -> number`, a client's default weight in the server's
      mean; `ClientResult.weight` overrides it.
    initialize: `(seed@SERVER) -> S@SERVER`; seed is int32 [2].
    initialize_client: `(S@SERVER, {seed}@CLIENTS) -> {C}@CLIENTS`, the state of
      clients before their first round.
    phases: The phases of a round, `(S@SERVER, {C}@CLIENTS, {D}@CLIENTS) ->
      <S@SERVER, {C}@CLIENTS, metrics@SERVER>`.
    join: `initialize_client` for clients in processes of their own, `(B@SERVER,
      {seed}@CLIENTS) -> {C}@CLIENTS`; B is a `phases.Broadcast`.
    client_halves: The clients' half of each phase, see `phases.Phase`.
    server_halves: The server's half of each phase.
    evaluate_clients: `(S@SERVER, {C}@CLIENTS, {D}@CLIENTS, {E}@CLIENTS) ->
      metrics@SERVER`: each client predicts its own E with its own model. The
      metrics are those of `evaluation.finalize`.
    evaluate_each_client: As `evaluate_clients`, and each client's own values:
      `-> <metrics@SERVER, {values}@CLIENTS>`. They stay at the clients; a
      simulation reads them.
    evaluate_server: `(S@SERVER, {D}@CLIENTS, E@SERVER) -> metrics@SERVER`: the
      server predicts E with the server model. None: the server has no model, or
      its model needs sums over clients that the aggregator would not hide.
    summarize: `(S@SERVER, {D}@CLIENTS) -> summary@SERVER`: the sums over
      clients that `spec.predict_as_server` takes. None: it takes none, or there
      is no `evaluate_server`.
    request: `(S@SERVER, R@SERVER) -> C@SERVER`: the new personal state that the
      server sends in answer to a client's request R. None: no requests.
    guidance: Answers queries that reach the server, see `guidance.Guidance`.
      None: built without guidance.
    is_stateless: Whether C is empty.
    is_local: Whether the server weights are empty: clients share nothing.
    min_source_domains: The minimum number of domains in a client's training
      data.
    max_clients: The number of clients that the algorithm can distinguish, by
      ids from 0. None: it does not use client ids.
    reporting_clients: The number of clients whose losses the server sees, by
      their ids from 0 (`phases.CLIENT_LOSSES`). None: it sees the mean only.
    noise_ratio: Norm of the aggregator's noise over the norm of the longest
      update, see `update_noise.ratio`.
    metrics: The metrics of evaluations besides `evaluation.METRICS`.
    hides_clients: Whether the aggregator hides single clients' updates from
      the server.
  """

  name: str
  num_classes: int
  model: split_model.SplitModel
  hparams: hyperparameters.HParams
  spec: AlgorithmSpec
  client_weight: function_types.ClientWeightFn
  initialize: tff.Computation
  initialize_client: tff.Computation
  phases: tuple[tff.Computation, ...]
  join: tff.Computation
  client_halves: tuple[tff.Computation, ...]
  server_halves: tuple[tff.Computation, ...]
  evaluate_clients: tff.Computation
  evaluate_each_client: tff.Computation
  evaluate_server: tff.Computation | None
  summarize: tff.Computation | None
  request: tff.Computation | None
  guidance: guidance.Guidance | None
  is_stateless: bool
  is_local: bool
  min_source_domains: int = 1
  max_clients: int | None = None
  reporting_clients: int | None = None
  noise_ratio: float = 0.0
  metrics: metric_lib.Chosen = metric_lib.NONE
  hides_clients: bool = False

  def start(self, data: Sequence[Any], run_seed: int) -> Start:
    """Returns the arguments of the first phase, without a driver.

    Args:
      data: The data of each client, such as a `ClientDataset`, in the dtypes of
        the algorithm. Clients without a seed get the seed of their position,
        which is then their id too.
      run_seed: Determines the initial weights and states, from 0 to 2**32 - 1.

    Returns:
      The arguments.
    """
    data = [
      each._replace(
        seed=randomness.client_seed(run_seed, client),
        client_id=np.int32(client),
      )
      if each.seed is None
      else each
      for client, each in enumerate(data)
    ]
    server_state = self.initialize(randomness.server_seed(run_seed))
    client_states = self.initialize_client(
      server_state, [each.seed for each in data]
    )
    return Start(server_state, FirstStates(client_states), data)

  def join_clients(
    self,
    server_state: ServerState,
    client_states: Sequence[Any],
    data: Sequence[Any],
    cohort: Sequence[int],
  ) -> list[Any]:
    """Adds the states of clients that take part for the first time.

    Call it before each round in which not all clients take part. A client's
    first state is computed from the weights of its first round, as in the
    drivers.

    Args:
      server_state: The server's state before the round.
      client_states: The states of `start`, or those of earlier rounds with None
        for each client that has not taken part.
      data: The data of all clients, from `start`.
      cohort: The positions of the clients that take part in the round.

    Returns:
      The state of each client by position; None without a round so far.

    Raises:
      ValueError: If the numbers of clients differ, or a position is not valid;
        one line.
    """
    num_clients = arguments.sequence("data", data)
    arguments.sequence("client_states", client_states, num_clients)
    cohort = [
      arguments.integer("cohort", client, 0, num_clients - 1)
      for client in cohort
    ]
    if isinstance(client_states, FirstStates):
      client_states = [None] * num_clients
    states = list(client_states)
    new = [client for client in dict.fromkeys(cohort) if states[client] is None]
    if new:
      joined = self.initialize_client(
        server_state, [data[client].seed for client in new]
      )
      for client, state in zip(new, joined, strict=True):
        states[client] = state
    return states

  def __repr__(self):
    return (
      f"FederatedAlgorithm({self.name!r}, model={self.model.name!r},"
      f" hparams={self.hparams!r})"
    )


def build(
  name: str,
  build_spec: Callable[
    [split_model.SplitModel, hyperparameters.HParams], AlgorithmSpec
  ],
  model: split_model.SplitModel,
  hparams: hyperparameters.HParams,
  *,
  requirements: factories.AggregationRequirements = factories.NO_REQUIREMENTS,
  aggregator: (
    tff.aggregators.WeightedAggregationFactory
    | tff.aggregators.UnweightedAggregationFactory
    | None
  ) = None,
  server_optimizer: tff.learning.optimizers.Optimizer | None = None,
  num_clients: int | None = None,
  reports_losses: bool = False,
  num_queries: int | None = None,
  num_evaluation_domains: int = 1,
  min_source_domains: int = 1,
  running_statistics: batch_statistics.Kept | None = None,
  metrics: metric_lib.Chosen = metric_lib.NONE,
) -> FederatedAlgorithm:
  """Builds an algorithm from its spec.

  Args:
    name: The algorithm's name.
    build_spec: `(model, hparams) -> AlgorithmSpec`. Called once. For a model
      with frozen weights: called whenever a function is traced, with a model
      whose frozen weights are tensors of the graph.
    model: The model; its inputs determine the type of the clients' data.
    hparams: Hyper-parameters, checked before `build_spec` is called.
    requirements: The algorithm's requirements on an aggregator.
    aggregator: A factory that averages updates, for example the result of
      `factories.build`. None: `tff.aggregators.MeanFactory()`. An unweighted
      factory is wrapped so that it ignores weights; this requires
      `hparams.client_weighting` to be `uniform`.
    server_optimizer: Steps along the mean update, for example the result of
      `server_optimizers.build`. Its gradient is minus the mean update. None:
      the mean update is added.
    num_clients: The number of all clients, at least 1, for
      `UpdateInfo.num_clients`. None: unknown.
    reports_losses: Whether the server sees the training loss of each client,
      the metrics `phases.CLIENT_LOSSES` of a round, for samplers that use it.
    num_queries: The number of queries answered at a time, at least 1. None:
      the algorithm is built without `guidance`.
    num_evaluation_domains: The number of domains of the evaluation data, at
      least 1.
    min_source_domains: The minimum number of domains in a client's training
      data.
    running_statistics: Which models have running statistics of batch
      normalisation. None: the model must not have any, see `batch_statistics`.
    metrics: The metrics of evaluations besides `evaluation.METRICS`.

  Returns:
    A `FederatedAlgorithm`.

  Raises:
    ValueError: If a hyper-parameter or a number has a value that is not
      allowed, or the algorithm does not support the aggregator or the model.
    TypeError: If the functions do not fit together, or send values that
      `requirements` does not declare.
  """
  hyperparameters.validate(hparams)
  num_evaluation_domains = arguments.integer(
    "num_evaluation_domains", num_evaluation_domains
  )
  if num_queries is not None:
    num_queries = arguments.integer("num_queries", num_queries)
  if num_clients is not None:
    num_clients = arguments.integer("num_clients", num_clients)
  aggregator = factories.wrap(aggregator)
  traits = aggregator.traits
  batch_statistics.check_is_trained(name, running_statistics, model)
  requirements = batch_statistics.requirements(
    requirements, running_statistics, model, hparams
  )
  factories.check(name, requirements, traits, hparams)
  if server_optimizer is not None and not isinstance(
    server_optimizer, tff.learning.optimizers.Optimizer
  ):
    raise ValueError(
      f"server_optimizer={server_optimizer!r} must be an optimizer, such as the"
      " result of ts.build_server_optimizer(name) or one of"
      " tff.learning.optimizers"
    )
  factories.check_server_optimizer(name, requirements, server_optimizer)
  if reports_losses and traits.hides_clients:
    raise ValueError(
      f"reports_losses is not allowed with aggregator={traits.name}: the server"
      " would see the loss of each client"
    )
  if reports_losses and num_clients is None:
    raise ValueError("reports_losses needs num_clients")
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
  data_type = functools.partial(
    local_training.data_type, model, allows_padding=allow_padding(functions)
  )
  examples_type = functions.examples_type or data_type()
  evaluation_type = data_type(num_evaluation_domains)
  is_local = not tff.structure.flatten(weights_type)
  weighting = hyperparameters.client_weighting(hparams)
  client_types = shared_type, client_type, examples_type

  def has_examples(data):
    """Returns 0 for a client without examples, otherwise 1."""
    if not hasattr(data, "y"):
      return 1  # Not a `ClientDataset`.
    return tf.minimum(functions.num_examples(data), 1)

  # Algorithms that average nothing may have no such hyper-parameter.
  weighting = getattr(hparams, "client_weighting", "uniform")

  def client_weight(data):
    """Returns a client's weight in the server's mean."""
    if is_local or weighting == "uniform":
      return has_examples(data)
    return functions.num_examples(data)

  reporting_clients = num_clients if reports_losses else None
  is_last = functions.personalize_client is None

  def client_part(work, **options):
    return phases.client_training(
      *client_types, work, requirements, client_weight, has_examples, **options
    )

  def aggregation(part):
    return aggregator.create(
      part.type_signature.result[0].update, tff.TensorType(np.float32)
    )

  surveys = [client_part(each.survey_client) for each in functions.surveys]
  training, update_type = None, weights_type
  if functions.train_client is not None:
    training = client_part(
      functions.train_client,
      reports_loss=reports_losses and is_last,
    )
    update_type = training.type_signature.result[0].update
  elif surveys:
    raise TypeError(f"{name} has surveys, but no train_client")
  if bool(surveys) != bool(requirements.surveys):
    raise TypeError(
      f"{name} must have surveys if and only if AGGREGATION_REQUIREMENTS says"
      " what clients report (surveys)"
    )
  update_noise.warn(name, traits.noise, update_type)
  aggregate = aggregator.create(update_type, tff.TensorType(np.float32))
  aggregates = [*map(aggregation, surveys), aggregate]
  update_types = [
    *(survey.type_signature.result[0].update for survey in surveys),
    update_type,
  ]

  @tff.federated_computation(tff.FederatedType(seed_type, tff.SERVER))
  def initialize(seed):
    nothing = optimizer = memory = tff.federated_value((), tff.SERVER)
    aggregator_states = tuple(
      aggregator.initialize(process, kind, seed, number)
      for number, (process, kind) in enumerate(
        zip(aggregates, update_types, strict=True)
      )
    )
    if server_optimizer is not None:
      optimizer = tff.federated_eval(
        _initial_optimizer(server_optimizer, update_type), tff.SERVER
      )
    if functions.initial_memory is not None:
      memory = tff.federated_map(
        tff.tensorflow.computation(functions.initial_memory, seed_type), seed
      )
    return tff.federated_zip(
      ServerState(
        weights=tff.federated_map(initial_weights, seed),
        aggregator=aggregator_states if surveys else aggregator_states[0],
        round_num=tff.federated_value(0, tff.SERVER),
        seed=seed if functions.starts_alike else nothing,
        optimizer=optimizer,
        memory=memory,
      )
    )

  server_type = frozen_weights.server_type(
    initialize.type_signature.result, model
  )

  def initial_states(server, seeds):
    shared = tff.federated_broadcast(frozen_weights.shared(server))
    if functions.starts_alike:
      seeds = tff.federated_broadcast(frozen_weights.state(server).seed)
    return tff.federated_map(initial_client_state, (shared, seeds))

  initialize_client, join = (
    tff.federated_computation(
      initial_states, each, tff.FederatedType(seed_type, tff.CLIENTS)
    )
    for each in (server_type, phases.broadcast_type(server_type))
  )
  round_phases = [
    phases.aggregating_phase(
      server_type,
      part,
      aggregates[place],
      functions.surveys[place].update_server,
      is_last=False,
      num_clients=num_clients,
      place=place,
    )
    for place, part in enumerate(surveys)
  ]
  if training is not None:
    try:
      training_phase = phases.aggregating_phase(
        server_type,
        training,
        aggregate,
        functions.update_server,
        is_last=is_last,
        server_optimizer=server_optimizer,
        num_clients=num_clients,
        place=len(surveys) if surveys else None,
        num_expected=traits.num_expected,
      )
    except phases.NoStepError as error:
      raise ValueError(
        f"server_optimizer is not allowed for {name}: {error}"
      ) from error
    round_phases.append(training_phase)
  if functions.personalize_client is not None:
    round_phases.append(
      phases.personal_phase(
        server_type,
        *client_types,
        functions.personalize_client,
        has_examples,
        reporting_clients,
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
        metrics,
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
    if functions.predicts_batches:
      raise ValueError(
        f"num_queries is not allowed with {name}: it predicts a batch as one,"
        " and each query is answered by itself"
      )
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
  evaluate_clients, evaluate_each_client = evaluation.client_evaluation(
    server_type,
    *client_types,
    evaluation_type,
    functions.prepare_client,
    functions.predict_as_client,
    functions.can_predict,
    metrics,
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
      phases=tuple(each.whole for each in round_phases),
      join=join,
      client_halves=tuple(each.client_half for each in round_phases),
      server_halves=tuple(each.server_half for each in round_phases),
      evaluate_clients=evaluate_clients,
      evaluate_each_client=evaluate_each_client,
      evaluate_server=evaluate_server,
      summarize=summarize,
      request=request,
      guidance=answering,
      is_stateless=not tff.structure.flatten(client_type),
      is_local=is_local,
      min_source_domains=min_source_domains,
      max_clients=functions.max_clients,
      reporting_clients=reporting_clients,
      noise_ratio=update_noise.ratio(traits.noise, update_type),
      metrics=metrics,
      hides_clients=traits.hides_clients,
    ),
    model,
  )


def allow_padding(functions: AlgorithmSpec) -> bool:
  """Returns whether all functions of a client's data allow padding."""
  return all(
    function is None or local_training.does_allow_padding(function)
    for function in [
      functions.train_client,
      functions.predict_as_client,
      functions.personalize_client,
      functions.prepare_client,
      functions.summarize_client,
      functions.can_predict,
      functions.num_examples,
      *(survey.survey_client for survey in functions.surveys),
    ]
  )


def _with_statistics(
  name: str,
  build_spec: Callable[..., AlgorithmSpec],
  running_statistics: batch_statistics.Kept | None,
  model: split_model.SplitModel,
  hparams: hyperparameters.HParams,
) -> AlgorithmSpec:
  """Builds an algorithm's spec and binds the model's running statistics."""
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
    if hyperparameters.client_weighting(hparams) == "num_examples"
    else lambda data: tf.minimum(functions.num_examples(data), 1),
  )


def check_sizes(
  name: str,
  build_spec: Callable[
    [split_model.SplitModel, hyperparameters.HParams], AlgorithmSpec
  ],
  model: split_model.SplitModel,
  hparams: hyperparameters.HParams,
  running_statistics: batch_statistics.Kept | None = None,
) -> None:
  """Refuses an algorithm whose states or batches do not fit in memory.

  These checks need no data, and `build` makes them too.

  Raises:
    ValueError: If a size is too large; one line.
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
  hparams: hyperparameters.HParams,
) -> tuple[tff.Computation, tff.Computation]:
  """Builds the computations of the initial weights and client state."""
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


def _initial_optimizer(
  optimizer: tff.learning.optimizers.Optimizer, update_type: tff.Type
) -> tff.Computation:
  """Builds the first state of a server optimizer."""
  specs = tuple(tf.nest.flatten(tff.types.type_to_tf_tensor_specs(update_type)))
  return tff.tensorflow.computation(lambda: optimizer.initialize(specs))


def _request(
  server_type, shared_type, client_type, answer_request, request_type
) -> tff.Computation:
  """Builds the server's answer to a client that requests a new state."""
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
