"""Names for the tensors of weights and states, for files of arrays."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_shift.learning import batch_statistics
from tff_shift.models import guided_model
from tff_shift.models import split_model

# Fields that are prefixes in the names of a model's weights.
_PARTS = ("backbone", "head", "client_branch")
# The name of a single tensor.
_ALONE = "value"


def by_name(value: Any, model: split_model.SplitModel) -> dict[str, np.ndarray]:
  """Gives each tensor of a nested structure a name.

  Args:
    value: Named tuples, dictionaries, tuples and lists of tensors or arrays.
    model: The model that the tensors may be weights of.

  Returns:
    The arrays. The weights of a backbone, a head or both have the names of
    `model.weight_names()`, also if the model was cut at another layer; those of
    a client branch are `client_branch/...`. All others are named by fields and
    positions, and so are outer structures: `psi/backbone/...`.
  """
  known = _known(model)
  return {
    "/".join(path) or _ALONE: np.asarray(tensor)
    for path, tensor in _walk(value, (), known)
  }


def _known(
  model: split_model.SplitModel,
) -> list[list[tuple[str, tuple[int, ...]]]]:
  """Returns names and shapes of related weights, in order."""
  names = model.weight_names()
  shapes = model.backbone.shapes + model.head.shapes
  found = [list(zip(names.backbone + names.head, shapes, strict=True))]
  if model.statistics:
    found.append(
      [(name, np.shape(each)) for name, each in model.statistics.items()]
    )
  if isinstance(model, guided_model.GuidedModel):
    branch = model.client_branch
    found.append(
      [
        (f"client_branch/{name}", shape)
        for name, shape in zip(branch.names, branch.shapes, strict=True)
      ]
    )
  return found


def _walk(value, path, known) -> Iterator[tuple[tuple[str, ...], Any]]:
  """Yields all tensors with their paths of fields and positions."""
  if isinstance(value, batch_statistics.Normalized):
    yield from _walk(value.weights, path, known)
    yield from _walk(value.statistics, path, known)
    for number, each in enumerate(value.normalizers):
      yield (*path, "normalizers", str(number)), each
    return
  if isinstance(value, split_model.SplitWeights):
    value = (*value.backbone, *value.head)
  children: Iterable[tuple[Any, Any]]
  if isinstance(value, Mapping):
    children = sorted(value.items())  # In TensorFlow's order of flattening.
  elif hasattr(value, "_fields"):
    children = value._asdict().items()
  elif isinstance(value, tuple | list):
    names = _weight_names(value, known, path[-1:] == ("head",))
    if names is not None:
      above = path[:-1] if path and path[-1] in _PARTS else path
      yield from (
        ((*above, name), tensor)
        for name, tensor in zip(names, value, strict=True)
      )
      return
    children = enumerate(value)
  else:
    yield path, value
    return
  for key, child in children:
    yield from _walk(child, (*path, str(key)), known)


def _weight_names(values, known, is_head: bool) -> list[str] | None:
  """Returns the names of values at the start or end of a list of weights."""
  if not values or any(isinstance(each, tuple | list) for each in values):
    return None
  shapes = [np.shape(each) for each in values]
  for weights in known:
    ends = weights[: len(values)], weights[-len(values) :]
    # Both may have the same shapes.
    for part in reversed(ends) if is_head else ends:
      if [tuple(shape) for _, shape in part] == shapes:
        return [name for name, _ in part]
  return None
