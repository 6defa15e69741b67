"""A `SplitModel` with a guide, which tells the clients apart.

Source: FedDRM, Fig. 2, eq. 7 and Remark 2.4. One network serves two tasks:

    x -> trunk -> features -> target branch -> embedding -> head -> class logits
                          `-> client branch -> client logits

Trunk and target branch are the backbone, so that every algorithm that takes a
`SplitModel` takes a `GuidedModel` and sees the network without the client
branch. The weights of the client branch are kept apart from `SplitWeights`: a
plain tuple of tensors, which only an algorithm with a guide asks for.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_shift.models import projection
from tff_shift.models import split_model


@dataclasses.dataclass(frozen=True)
class GuidedModel(split_model.SplitModel):
  """A classifier of classes and, from features that both share, of clients.

  Attributes:
    trunk: `(weights, x) -> features`, what both tasks share; its weights are
      the first `trunk_size` of the backbone. Features may have any shape.
    target_branch: `(weights, features) -> embedding`, the rest of the backbone.
    trunk_size: The number of weights (tensors) of the trunk; 0 where the two
      tasks share nothing and both branches take the example itself.
    client_branch: `(weights, features) -> logits [batch, num_clients]`, a part.
    num_clients: The number of clients.
  """

  trunk: Callable[[Any, tf.Tensor], tf.Tensor]
  target_branch: Callable[[Any, tf.Tensor], tf.Tensor]
  trunk_size: int
  client_branch: split_model.Part
  num_clients: int

  def initial_client_branch(self, seed) -> tuple[tf.Tensor, ...]:
    """Draws the client branch's initial weights; seed is int32 [2]."""
    # 0 and 1 are the backbone's and the head's: see `initial_weights`.
    return self.client_branch.initial_weights(
      tf.random.experimental.stateless_fold_in(seed, 2)
    )

  def predict_both(
    self, weights: split_model.SplitWeights, client_branch_weights, x
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Maps examples to the logits of both tasks; the trunk is computed once.

    Args:
      weights: The weights of backbone and head.
      client_branch_weights: The weights of the client branch.
      x: Examples [batch, ...] of `input_dtype`.

    Returns:
      Class logits [batch, num_classes] and client logits [batch, num_clients],
      float32.
    """
    features = self._features(weights.backbone, x)
    embedding = self.target_branch(
      weights.backbone[self.trunk_size :], features
    )
    return (
      self.classify(weights.head, embedding),
      self.client_branch(client_branch_weights, features),
    )

  def predict_client(
    self, backbone_weights, client_branch_weights, x
  ) -> tf.Tensor:
    """Maps examples to client logits, without the target branch.

    Args:
      backbone_weights: The weights of the backbone.
      client_branch_weights: The weights of the client branch.
      x: Examples [batch, ...] of `input_dtype`.

    Returns:
      Client logits [batch, num_clients], float32.
    """
    return self.client_branch(
      client_branch_weights, self._features(backbone_weights, x)
    )

  def _features(self, backbone_weights, x):
    return self.trunk(backbone_weights[: self.trunk_size], self.scale(x))

  @property
  def num_guided_parameters(self) -> int:
    """The number of weights of backbone, head and client branch."""
    return self.num_parameters + self.client_branch.num_parameters


def _identity(weights, x):
  del weights
  return x


def _compose(
  first: split_model.Part, second: split_model.Part
) -> split_model.Part:
  """Returns the part `second(first(x))` of the weights of both, in order."""
  size = len(first.names)
  return split_model.Part(
    function=lambda weights, x: second(
      weights[size:], first(weights[:size], x)
    ),
    names=first.names + second.names,
    initializers=first.initializers + second.initializers,
    shapes=first.shapes + second.shapes,
  )


def _check_fit(name: str, trunk, target_branch, head, client_branch) -> None:
  """Raises a ValueError unless the Keras models fit together."""
  origin = "trunk gives" if trunk else "target branch takes"
  features = trunk.output_shape[1:] if trunk else target_branch.input_shape[1:]
  for branch, model in (
    ("target branch", target_branch),
    ("client branch", client_branch),
  ):
    if model.input_shape[1:] != features:
      raise ValueError(
        f"model {name!r}: {origin} {features} and {branch} takes"
        f" {model.input_shape[1:]}; both must be the same"
      )
  embedding = target_branch.output_shape[1:]
  if len(embedding) != 1 or head.input_shape[1:] != embedding:
    raise ValueError(
      f"model {name!r}: target branch gives {embedding} and head takes"
      f" {head.input_shape[1:]}; both must be one and the same vector"
    )
  for part, model in (("head", head), ("client branch", client_branch)):
    if len(model.output_shape) != 2:
      raise ValueError(
        f"model {name!r}: {part} gives {model.output_shape[1:]}; logits must"
        " be a vector"
      )


def build_guided_model(
  name: str,
  *,
  trunk: Callable[[], tf.keras.Model] | None,
  target_branch: Callable[[], tf.keras.Model],
  head: Callable[[], tf.keras.Model],
  client_branch: Callable[[], tf.keras.Model],
  input_dtype: tf.DType,
) -> GuidedModel:
  """Builds a `GuidedModel` from Keras models.

  Args:
    name: The name of the architecture.
    trunk: Builds a Keras model from an example to features of any shape. None:
      the tasks share nothing, and both branches take the example.
    target_branch: Builds a Keras model from features to a vector.
    head: Builds a Keras model from that vector to class logits.
    client_branch: Builds a Keras model from features to client logits, whose
      number is the number of clients.
    input_dtype: `tf.uint8` (images in 0..255) or `tf.float32`.

  Returns:
    The `GuidedModel`.

  Raises:
    ValueError: If the Keras models do not fit together, if one of them has no
      weights, if a weight has no initializer or is not trainable, or if trunk
      and target branch have layers of one name.
  """
  keras_trunk = trunk() if trunk else None
  keras_target, keras_head = target_branch(), head()
  keras_client = client_branch()
  _check_fit(name, keras_trunk, keras_target, keras_head, keras_client)
  target_part = split_model.make_part(keras_target)
  if keras_trunk:
    trunk_part = split_model.make_part(keras_trunk)
    backbone = _compose(trunk_part, target_part)
    trunk_function, trunk_size = trunk_part, len(trunk_part.names)
  else:
    backbone, trunk_function, trunk_size = target_part, _identity, 0
  twice = sorted(n for n in backbone.names if backbone.names.count(n) > 1)
  if twice:
    raise ValueError(
      f"model {name!r}: trunk and target branch both have a weight"
      f" {twice[0]!r}; give their layers different names"
    )
  return GuidedModel(
    name=name,
    backbone=backbone,
    head=split_model.make_part(keras_head),
    input_shape=tuple((keras_trunk or keras_target).input_shape[1:]),
    input_dtype=tf.as_dtype(input_dtype),
    num_classes=keras_head.output_shape[-1],
    embedding_size=keras_target.output_shape[-1],
    trunk=trunk_function,
    target_branch=target_part,
    trunk_size=trunk_size,
    client_branch=split_model.make_part(keras_client),
    num_clients=keras_client.output_shape[-1],
  )


def with_guide(
  model: split_model.SplitModel, num_clients: int, width: int
) -> GuidedModel:
  """Gives a model the client branch of FedDRM's Fig. 2 on its embedding.

  The trunk is the whole backbone and the target branch nothing. Name, weights
  and initial weights of the model stay as they are; a guide that it has already
  is replaced.

  Args:
    model: The model.
    num_clients: The number of clients.
    width: The width of the hidden layer of the client branch.

  Returns:
    The `GuidedModel`.

  Raises:
    ValueError: If `num_clients` or `width` is not positive.
  """
  for argument, value in (("num_clients", num_clients), ("width", width)):
    if value < 1:
      raise ValueError(f"{argument}={value} of a guide has to be positive")
  fields = {
    field.name: getattr(model, field.name)
    for field in dataclasses.fields(split_model.SplitModel)
  }
  return GuidedModel(
    **fields,
    trunk=model.backbone,
    target_branch=_identity,
    trunk_size=len(model.backbone.names),
    client_branch=split_model.make_part(
      projection.client_branch(model.embedding_size, width, num_clients)
    ),
    num_clients=num_clients,
  )
