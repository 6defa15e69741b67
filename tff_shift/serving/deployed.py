"""The deployed model in a folder of `export`, to be adapted.

`model.json` says how to build the network, if it is one of the package.
`deployment.npz`, which a run writes with `--save_deployment`, has

    weights/<name>   the weights of the deployed model
    confusion        its confusion matrix
    x/<client>       the labelled examples of each client, and
    y/<client>       their classes

Names of clients and features are in the schema of `model.json`.

The deployed model is the one that the run started from: the confusion matrix is
of this model. Without the file, the weights are those of `weights.npz`.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_shift import algorithms
from tff_shift import models
from tff_shift.algorithms.parts import adaptation
from tff_shift.data import array_files
from tff_shift.data import examples as examples_lib
from tff_shift.data import table
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.models import fingerprint
from tff_shift.models import input_scaling
from tff_shift.models import split_model
from tff_shift.serving import description

_SCENARIO = "online_adaptation"
_WEIGHTS, _X, _Y, _CONFUSION = "weights/", "x/", "y/", "confusion"


def network(model: split_model.SplitModel) -> description.Network | None:
  """Returns what builds a model again; None: a program must."""
  if model.origin is None:
    return None
  return description.Network(
    name=model.origin.name,
    options=dict(model.origin.options),
    input_mean=tuple(model.input_scaling.mean),
    input_deviation=tuple(model.input_scaling.deviation),
  )


def arrays(
  algorithm: algorithm_lib.FederatedAlgorithm,
  data: Sequence[Any],
) -> dict[str, np.ndarray]:
  """Returns the arrays of `deployment.npz`.

  Args:
    algorithm: The algorithm; its model starts from the deployed weights.
    data: The data of all clients.

  Raises:
    ValueError: If the clients have no data from before deployment, or the
      model's initial weights are drawn.
  """
  if not isinstance(data[0], adaptation.AdaptationData):
    raise ValueError(
      f"a run of {algorithm.name} has no deployment to save: its clients have"
      f" {type(data[0]).__name__}, not AdaptationData"
    )
  model = algorithm.model
  weights, others = (
    [np.asarray(each) for each in tf.nest.flatten(model.initial_weights(seed))]
    for seed in ([0, 0], [0, 1])
  )
  if not all(map(np.array_equal, weights, others)):
    raise ValueError(
      "there is no deployed model to save: the initial weights of"
      f" {model.name!r} are drawn"
    )
  names = tf.nest.flatten(model.weight_names())
  found = dict(zip(names, weights, strict=True)) | model.statistics
  return {
    **{f"{_WEIGHTS}{name}": np.asarray(each) for name, each in found.items()},
    _CONFUSION: np.asarray(data[0].confusion),
    **{f"{_X}{client}": each.x for client, each in enumerate(data)},
    **{f"{_Y}{client}": each.y for client, each in enumerate(data)},
  }


def model(
  folder: str | os.PathLike[str],
  built: split_model.SplitModel | None = None,
) -> split_model.SplitModel:
  """Returns the deployed model of a folder, to build an algorithm.

  Args:
    folder: The folder of a saved model.
    built: The network. None: that of the folder, if it is one of the package.

  Returns:
    The model; it starts from the weights of the folder for every seed.

  Raises:
    FileNotFoundError: If there is no such folder.
    ValueError: If the network is unknown or another one, or weights are
      missing; one line.

  Examples:
    >>> from tff_shift.serving import export
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> algorithm = ts.build_algorithm("source", model)
    >>> data = [ts.ClientDataset.from_arrays(np.eye(2), np.arange(2))]
    >>> with ts.execution.use("in_process"):
    ...   state = algorithm.initialize(np.int32([0, 0]))
    ...   export.export(algorithm, state, [()], data, folder / "model")
    >>> ts.load_model(folder / "model").head.shapes
    ((4, 64), (64,), (64, 2), (2,))
  """
  folder, described = _described(folder)
  is_given = built is not None
  if built is None:
    built = _built(folder, described)
  function = described.function
  if function is not None and fingerprint.function_digest(built) != function:
    raise ValueError(
      f"{folder}: model {built.name!r} is another network than the saved one"
      if is_given
      else f"{folder}: this version builds another network"
      f" {built.name!r} than the saved one; pass the saved one as model"
    )
  values = {
    name.removeprefix(_WEIGHTS): each
    for name, each in _deployment_file(folder).items()
    if name.startswith(_WEIGHTS)
  }
  if not values:
    path = folder / description.WEIGHTS_FILE
    needed = {*tf.nest.flatten(built.weight_names()), *built.statistics}
    values = array_files.read_npz(path)
    missing = sorted(needed - set(values))
    if missing:
      raise ValueError(
        f"{path} has no {missing[0]!r}: the server of"
        f" {described.algorithm} does not hold the whole model; save the run"
        " with --save_deployment, or build the algorithm with a model that"
        " starts from the deployed weights"
      )
    values = {name: values[name] for name in needed}
  try:
    return split_model.with_weights(built, values)
  except ValueError as error:
    raise ValueError(f"{folder}: {error}") from error


def deployment(folder: str | os.PathLike[str]) -> adaptation.Deployment:
  """Returns the confusion matrix and the labelled examples of a folder.

  Raises:
    FileNotFoundError: If there is no such folder.
    ValueError: If it has none, or they are damaged; one line.
  """
  folder, described = _described(folder)
  found = _deployment_file(folder)
  if not found:
    raise ValueError(
      f"{folder} has no {description.DEPLOYMENT_FILE}: a confusion matrix and"
      " labelled examples are missing; pass"
      " deployment=ts.Deployment(initial, confusion), or save the run with"
      " --save_deployment"
    )
  num_clients = sum(name.startswith(_X) for name in found)
  try:
    return adaptation.Deployment(
      [
        examples_lib.Examples(found[f"{_X}{each}"], found[f"{_Y}{each}"])
        for each in range(num_clients)
      ],
      found[_CONFUSION],
      client_names=described.schema.clients,
      feature_names=described.schema.features,
    )
  except KeyError as error:
    raise ValueError(
      f"{folder / description.DEPLOYMENT_FILE} is damaged: it has no {error}"
    ) from error


def schema(folder: str | os.PathLike[str]) -> table.Schema:
  """Returns the names of the data of a folder."""
  return _described(folder)[1].schema


def algorithm(
  folder: str | os.PathLike[str],
  built: split_model.SplitModel | None,
  num_clients: int,
) -> algorithm_lib.FederatedAlgorithm:
  """Builds the algorithm of a folder with the deployed model.

  Args:
    folder: The folder of a saved model.
    built: See `model`.
    num_clients: The number of all clients.

  Raises:
    FileNotFoundError: If there is no such folder.
    ValueError: If it is no algorithm of online adaptation, or as in `model`.
  """
  folder, described = _described(folder)
  name = described.algorithm
  known = [
    each
    for each in algorithms.names()
    if _SCENARIO in algorithms.describe(each).scenarios
  ]
  if name not in known:
    raise ValueError(
      f"{folder} is a model of {name}, which is no algorithm of"
      f" {_SCENARIO}; build one of them with ts.load_model(folder):"
      f" {', '.join(known)}"
    )
  return algorithms.build(
    name,
    model(folder, built),
    algorithms.hparams(name, **_with_tuples(described.hparams)),
    num_clients=max(1, num_clients),
  )


def _described(
  folder: str | os.PathLike[str],
) -> tuple[pathlib.Path, description.Description]:
  folder = pathlib.Path(folder)
  if not (folder / description.FILE).is_file():
    raise FileNotFoundError(
      f"{str(folder)!r} holds no saved model (no {description.FILE})"
    )
  return folder, description.read(folder)


def _deployment_file(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the arrays of `deployment.npz`; empty without it."""
  path = folder / description.DEPLOYMENT_FILE
  if not path.exists():
    return {}
  try:
    return array_files.read_npz(path)
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error


def _built(
  folder: pathlib.Path, described: description.Description
) -> split_model.SplitModel:
  """Builds the network of a folder."""
  given = described.network
  if given is None:
    raise ValueError(
      f"{folder / description.FILE} does not say how to build the network"
      f" {described.model!r}; pass it, such as"
      ' model=ts.from_keras(..., initial="given")'
    )
  scaling = input_scaling.InputScaling(given.input_mean, given.input_deviation)
  options = _with_tuples(given.options)
  normalization = options.pop("normalization", None)
  found = models.build(
    given.name,
    input_shape=described.input_shape,
    num_classes=described.num_classes,
    input_dtype=tf.as_dtype(described.input_dtype),
    input_scaling=None if scaling == input_scaling.ZERO_ONE else scaling,
    **options,
  )
  if normalization == "batch":
    found = models.with_batch_normalization(found)
  return found


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
  """Returns JSON types with tuples instead of lists."""
  return {
    name: tuple(each) if isinstance(each, list) else each
    for name, each in fields.items()
  }
