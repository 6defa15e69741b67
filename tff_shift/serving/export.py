"""Exports a run: a model that predicts, and weights by name.

    saved_model.pb, variables/, ...   the SavedModel, see `served`; missing if
                                      nothing can predict, for example without
                                      the clients' heads
    weights.npz                       the server's weights by name, and each
                                      client's state for predicting,
                                      `clients/<id>/`
    model.json                        the description, see `description`
    vocabulary.txt                    for titles: the word of each id, one per
                                      line, from 0

    deployment.npz                    on request: what `ts.Adapter` starts from,
                                      see `deployed`

Only `deployment.npz` contains examples: a function is traced with a placeholder
for each tensor, and only the tensors that a result needs are stored
(`tracing`). Shared tensors are stored once, and the clients' are stacked, so
that the graph does not grow with the number of clients.

Choices:
  * A prediction that needs a client's examples is refused: `prepare_client` has
    to compute a summary of them, such as prototypes. FedEvolve's clients
    therefore compute the prototypes of all their domains, even if only one is
    requested.
"""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift._util import files
from tff_shift.data import array_files
from tff_shift.data import client_dataset
from tff_shift.data import table
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import frozen_weights
from tff_shift.learning import guidance
from tff_shift.learning import randomness
from tff_shift.models import fingerprint
from tff_shift.serving import deployed
from tff_shift.serving import description
from tff_shift.serving import naming
from tff_shift.serving import served
from tff_shift.serving import tracing


def export(
  algorithm: algorithm_lib.FederatedAlgorithm,
  server_state: Any,
  client_states: Sequence[Any],
  data: Sequence[Any],
  folder: str | os.PathLike[str],
  *,
  clients: Sequence[int] = (),
  schema: table.Schema | None = None,
  vocabulary: Sequence[str] | None = None,
  with_deployment: bool = False,
) -> None:
  """Writes a folder that `tff_shift.load` loads; call it within an executor.

  Args:
    algorithm: The algorithm.
    server_state: The server's state.
    client_states: The clients' states by client.
    data: The clients' data for training or adaptation, by client. A summary or
      a guide uses the data of all clients; no examples are stored.
    folder: The folder. A model in it is replaced.
    clients: The clients whose own models are stored, by position.
    schema: The names of classes, features and all clients, where they are
      known. None: none is.
    vocabulary: The word of each id, if examples are titles.
    with_deployment: Whether to write what `ts.Adapter` starts from. It has the
      labelled examples of all clients.

  Raises:
    ValueError: If there is no such client or no deployment, if names do not
      fit, if a prediction needs the examples of a client, or if the folder has
      other content.
    files.WriteError: If it cannot be written.
  """
  schema = schema or table.Schema()
  folder = pathlib.Path(folder)
  wrong = [each for each in clients if not 0 <= each < len(data)]
  if wrong:
    raise ValueError(
      f"there is no client {wrong[0]}; there are {len(data)}, from 0"
    )
  clients = sorted(set(clients))
  own_data = [data[client] for client in clients]
  deployment = None
  if with_deployment:
    deployment = deployed.arrays(algorithm, data)
  client_names = None
  if schema.clients is not None:
    client_names = tuple(schema.clients[client] for client in clients)
  personal = personal_states(
    algorithm, server_state, [client_states[each] for each in clients], own_data
  )
  weights = _arrays(server_state.weights)
  tensors = _tensors(algorithm, server_state, weights, personal, own_data, data)
  domain = len(getattr(data[0], "domain_sizes", ()))
  traced = _trace(algorithm, tensors, bool(clients), domain)
  parts = served.Parts(
    **traced,
    tensors=tensors,
    clients=clients,
    has_all_clients=len(clients) == len(data),
    client_weights=_client_weights(algorithm, traced["guide"], data),
    num_classes=algorithm.num_classes,
    x=_x_spec(algorithm),
    request=_request_spec(algorithm),
  )
  names = list(naming.by_name(tensors, algorithm.model))
  parts = parts._replace(tensors=served.variables(parts, names))
  functions = served.functions(parts)
  named = naming.by_name(weights, algorithm.model)
  for client, each in zip(clients, personal, strict=True):
    for name, array in naming.by_name(each, algorithm.model).items():
      named[f"{description.CLIENTS}/{client}/{name}"] = array
  with _replacing(folder) as temporary:
    if functions:
      served.save(
        parts,
        functions,
        str(temporary),
        served.Names(schema.classes or None, client_names, schema.features),
      )
    array_files.write_npz(temporary / description.WEIGHTS_FILE, named)
    if deployment is not None:
      array_files.write_npz(temporary / description.DEPLOYMENT_FILE, deployment)
    if vocabulary is not None:
      description.write_vocabulary(temporary, vocabulary)
    description.write(
      temporary,
      description.Description(
        algorithm=algorithm.name,
        hparams=dataclasses.asdict(algorithm.hparams),
        model=algorithm.model.name,
        input_shape=tuple(algorithm.model.input_shape),
        input_dtype=algorithm.model.input_dtype.name,
        num_classes=algorithm.num_classes,
        clients=tuple(clients),
        schema=schema,
        functions=tuple(functions),
        request_shape=parts.request and tuple(parts.request.shape),
        function=fingerprint.function_digest(algorithm.model),
        network=deployed.network(algorithm.model),
      ),
    )


def _arrays(structure: Any) -> Any:
  return tf.nest.map_structure(np.asarray, structure)


def preparation(
  algorithm: algorithm_lib.FederatedAlgorithm,
  server_type: tff.FederatedType | None = None,
) -> tff.Computation | frozen_weights.WithFrozen | None:
  """Returns what prepares clients' states for predicting; None: nothing does.

  Args:
    algorithm: The algorithm.
    server_type: The type of its argument at SERVER. None: that of the phases.
  """
  if algorithm.spec.prepare_client is None:
    return None
  prepare = algorithm.guidance and algorithm.guidance.prepare
  if prepare is not None and server_type is None:
    return prepare
  of_phases, client_type, examples_type, _ = (
    algorithm.evaluate_clients.type_signature.parameter
  )
  server_type = server_type or of_phases
  return frozen_weights.with_frozen(
    guidance.preparation(
      server_type,
      frozen_weights.shared_type(
        frozen_weights.state_type(server_type).weights, algorithm.model
      ),
      client_type.member,
      examples_type.member,
      algorithm.spec.prepare_client,
    ),
    algorithm.model,
  )


def personal_states(
  algorithm: algorithm_lib.FederatedAlgorithm,
  server_state: Any,
  states: Sequence[Any],
  data: Sequence[Any],
) -> list[Any]:
  """Returns each client's state for predicting, prepared if necessary."""
  prepare = preparation(algorithm) if states else None
  if prepare is None:
    return [_arrays(each) for each in states]
  prepared = prepare(server_state, list(states), list(data))
  return [_arrays(each) for each in prepared]


def _tensors(
  algorithm: algorithm_lib.FederatedAlgorithm,
  server_state: Any,
  weights: Any,
  personal: Sequence[Any],
  own_data: Sequence[Any],
  data: Sequence[Any],
) -> served.Tensors:
  """Returns the tensors that may be stored; None for the examples."""
  shared = weights
  if frozen_weights.has_any(algorithm.model):
    shared = frozen_weights.Shared(weights, _arrays(algorithm.model.frozen))
  summary = ()
  if algorithm.summarize is not None:
    summary = _arrays(algorithm.summarize(server_state, list(data)))
  specs = _data_specs(algorithm)
  if not own_data:
    nothing = tf.nest.map_structure(lambda spec: None, specs)
    return served.Tensors(shared, summary, (), nothing)
  return served.Tensors(
    shared,
    summary,
    tf.nest.map_structure(lambda *each: np.stack(each), *personal),
    tf.nest.map_structure(
      # Examples have a variable first size.
      lambda spec, *each: (
        np.stack(each) if spec.shape.is_fully_defined() else None
      ),
      specs,
      *own_data,
      # Of the same fields: data may be of a type without padding.
      check_types=False,
    ),
  )


def _trace(
  algorithm: algorithm_lib.FederatedAlgorithm,
  tensors: served.Tensors,
  has_clients: bool,
  domain: int,
) -> dict[str, tracing.Traced | None]:
  """Traces the functions of the algorithm, by the names of `served.Parts`."""
  spec = algorithm.spec
  specs = served.Tensors(
    _specs(tensors.shared),
    _specs(tensors.summary),
    _specs(tensors.personal, first=1),
    _data_specs(algorithm),
  )
  x = _x_spec(algorithm)

  def predict(given, x):
    return spec.predict_as_server(
      given.shared, given.summary, to_predict(x, domain)
    )

  def predict_as(given, x):
    return spec.predict_as_client(
      given.shared, given.personal, given.data, to_predict(x, domain)
    )

  def guide(given, x):
    return spec.guide_queries(given.shared, x)

  def predict_for(given, request, x):
    state = spec.answer_request(given.shared, request)
    return spec.predict_as_client(
      given.shared, state, given.data, to_predict(x, domain)
    )

  traced = dict.fromkeys(("predict", "predict_as", "guide", "predict_for"))
  if algorithm.evaluate_server is not None:
    traced["predict"] = tracing.trace(predict, specs, x)
  if has_clients:
    traced["predict_as"] = tracing.trace(predict_as, specs, x)
    _check_has_no_examples(algorithm, tensors, traced["predict_as"])
  if spec.guide_queries is not None:
    traced["guide"] = tracing.trace(guide, specs, x)
  if spec.answer_request is not None and spec.prepare_client is None:
    request = _request_spec(algorithm)
    without_data = tensors._replace(
      data=tf.nest.map_structure(lambda _: None, specs.data)
    )
    traced["predict_for"] = tracing.trace(predict_for, specs, request, x)
    _check_has_no_examples(algorithm, without_data, traced["predict_for"])
  return traced


def _check_has_no_examples(
  algorithm: algorithm_lib.FederatedAlgorithm,
  tensors: served.Tensors,
  traced: tracing.Traced,
) -> None:
  """Refuses a prediction that needs tensors that may not be stored."""
  flat = tf.nest.flatten(tensors)
  names = list(naming.by_name(tensors, algorithm.model))
  for position in traced.used:
    if position < len(flat) and flat[position] is None:
      raise ValueError(
        f"a client of {algorithm.name} cannot be stored: its prediction needs"
        f" its {names[position].replace('/', '.')}; `prepare_client` must"
        " compute from it what predictions need"
      )


def _specs(structure: Any, first: int = 0) -> Any:
  """Returns the types of arrays, without their first axes."""
  return tf.nest.map_structure(
    lambda array: tf.TensorSpec(array.shape[first:], array.dtype), structure
  )


def _data_specs(algorithm: algorithm_lib.FederatedAlgorithm) -> Any:
  """Returns the type of a client's data, in its own structure."""
  return tff.types.structure_from_tensor_type_tree(
    lambda each: tf.TensorSpec(each.shape, each.dtype),
    algorithm.evaluate_clients.type_signature.parameter[2].member,
  )


def _x_spec(algorithm: algorithm_lib.FederatedAlgorithm) -> tf.TensorSpec:
  model = algorithm.model
  return tf.TensorSpec([None, *model.input_shape], model.input_dtype, name="x")


def _request_spec(
  algorithm: algorithm_lib.FederatedAlgorithm,
) -> tf.TensorSpec | None:
  request = algorithm.spec.request_type
  return request and tf.TensorSpec(request.shape, request.dtype, "request")


def to_predict(x: tf.Tensor, domain: int) -> client_dataset.ClientDataset:
  """Returns examples of a domain in the form of evaluation data."""
  num_examples = tf.shape(x)[0]
  return client_dataset.ClientDataset(
    x=x,
    # Unknown.
    y=tf.zeros([num_examples], tf.int32),
    domain_sizes=tf.one_hot(
      domain, domain + 1, on_value=num_examples, off_value=0
    ),
    num_examples=num_examples,
    seed=tf.zeros(randomness.SEED_SHAPE, tf.int32),
    client_id=tf.constant(0),
  )


def _client_weights(
  algorithm: algorithm_lib.FederatedAlgorithm,
  guide: tracing.Traced | None,
  data: Sequence[Any],
) -> np.ndarray | None:
  """Returns each client's weight, for the guide."""
  if guide is None:
    return None
  weights = np.zeros([guide.output_shape[-1]], np.float32)
  for each in data:
    weights[int(each.client_id)] += float(algorithm.client_weight(each))
  return weights


@contextlib.contextmanager
def _replacing(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Replaces a model's folder atomically; refuses to replace other content."""
  if folder.exists() and not (folder / description.FILE).is_file():
    raise ValueError(f"{folder} holds no model that could be replaced")
  with files.writing(folder):
    folder.parent.mkdir(parents=True, exist_ok=True)
  with files.replacing_folder(folder) as temporary:
    yield temporary
