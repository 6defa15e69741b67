"""A `SplitModel` with a guide, which distinguishes the clients.

Source: FedDRM, Fig. 2, eq. 7 and Remark 2.4. One network serves two tasks:

    x -> trunk -> features -> target branch -> embedding -> head -> class logits
                          `-> client branch -> client logits

Trunk and target branch are the backbone, so every algorithm that takes a
`SplitModel` takes a `GuidedModel` and sees the network without the client
branch. The weights of the client branch are separate from `SplitWeights`: a
plain tuple of tensors, which only algorithms with a guide use.
"""

import dataclasses
from collections.abc import Callable
from typing import Self

import tensorflow as tf

from tff_shift.models import parts
from tff_shift.models import split_model
from tff_shift.models.keras import keras_parts
from tff_shift.models.networks import projection


@dataclasses.dataclass(frozen=True)
class GuidedModel(split_model.SplitModel):
  """A classifier of classes and, from shared features, of clients.

  Attributes:
    trunk: `(weights, x) -> features`, the part that both tasks share; its
      weights are the first of the backbone. Features can have any shape. It is
      the identity if the tasks share nothing and both take the example itself.
    target_branch: `(weights, features) -> embedding`, the rest of the backbone.
    client_branch: `(weights, features) -> logits [batch, num_clients]`.
    num_clients: The number of clients.
  """

  trunk: parts.Part
  target_branch: parts.Part
  client_branch: parts.Part
  num_clients: int

  _PARTS = (*split_model.SplitModel._PARTS, "client_branch")

  @property
  def trunk_size(self) -> int:
    """The number of weights (tensors) of the trunk."""
    return len(self.trunk.names)

  def initial_client_branch(self, seed) -> tuple[tf.Tensor, ...]:
    """Draws the client branch's initial weights; seed is int32 [2]."""
    return self.client_branch.initial_weights(seed)

  def with_frozen(self, values) -> Self:
    """Returns the model with other frozen weights; the client branch is last.

    See `SplitModel.with_frozen`.
    """
    model = super().with_frozen(values)
    frozen, size = model.backbone.frozen, len(model.trunk.frozen)
    return dataclasses.replace(
      model,
      trunk=model.trunk.with_frozen(frozen[:size]),
      target_branch=model.target_branch.with_frozen(frozen[size:]),
    )

  def _frozen_names_in(self, part: str) -> tuple[str, ...] | None:
    """Returns the names in a part; the backbone's are trunk's and branch's."""
    names = super()._frozen_names_in(part)
    if names is not None or part != "backbone":
      return names
    found = [
      getattr(each.source, "frozen_names", None) if each.frozen else ()
      for each in (self.trunk, self.target_branch)
    ]
    return None if None in found else sum(found, ())

  def move_to_backbone(
    self, layers: parts.Part, head: parts.Part, embedding_size: int
  ) -> Self:
    """Returns the model with another cut; the target branch gets the layers.

    See `SplitModel.move_to_backbone`.
    """
    return dataclasses.replace(
      super().move_to_backbone(layers, head, embedding_size),
      target_branch=parts.compose(self.target_branch, layers),
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
    features = self.features(weights.backbone, x)
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
      client_branch_weights, self.features(backbone_weights, x)
    )

  def features(self, backbone_weights, x) -> tf.Tensor:
    """Maps examples [batch, ...] to the features that both tasks share."""
    return self.trunk(backbone_weights[: self.trunk_size], self.scale(x))

  @property
  def num_guided_parameters(self) -> int:
    """The number of weights of backbone, head and client branch."""
    return self.num_parameters + self.client_branch.num_parameters


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
    head: Builds a Keras model from this vector to class logits.
    client_branch: Builds a Keras model from features to client logits; their
      number is the number of clients.
    input_dtype: `tf.uint8` (images in 0..255), `tf.int32` (tokens) or
      `tf.float32`.

  Returns:
    The `GuidedModel`. Weights that are not trainable are frozen, with the
    current values of the Keras models.

  Raises:
    ValueError: If the Keras models or the dtype do not fit together, if one of
      them has no weights, if a weight has no initializer, or if trunk and
      target branch have layers of the same name.
  """
  keras_trunk = trunk() if trunk else None
  keras_target, keras_head = target_branch(), head()
  keras_client = client_branch()
  _check_fit(name, keras_trunk, keras_target, keras_head, keras_client)
  split_model.check_input_dtype(name, keras_trunk or keras_target, input_dtype)
  trunk_part = (
    keras_parts.make_part(keras_trunk, parts.BACKBONE)
    if keras_trunk
    else parts.identity()
  )
  target_part = keras_parts.make_part(
    keras_target, parts.BACKBONE, start=len(trunk_part.names)
  )
  try:
    backbone = parts.compose(trunk_part, target_part)
  except ValueError as error:
    raise ValueError(f"model {name!r}: {error}") from error
  return GuidedModel(
    name=name,
    backbone=backbone,
    head=keras_parts.make_part(keras_head, parts.HEAD),
    input_shape=tuple((keras_trunk or keras_target).input_shape[1:]),
    input_dtype=tf.as_dtype(input_dtype),
    num_classes=keras_head.output_shape[-1],
    embedding_size=keras_target.output_shape[-1],
    trunk=trunk_part,
    target_branch=target_part,
    client_branch=keras_parts.make_part(keras_client, parts.CLIENT_BRANCH),
    num_clients=keras_client.output_shape[-1],
  )


def with_guide(
  model: split_model.SplitModel, num_clients: int, width: int
) -> GuidedModel:
  """Adds the client branch of FedDRM's Fig. 2 to a model's embedding.

  The trunk is the whole backbone and the target branch is empty. Name, weights
  and initial weights of the model do not change; an existing guide is replaced.

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
      raise ValueError(f"{argument}={value} of a guide must be positive")
  fields = {
    field.name: getattr(model, field.name)
    for field in dataclasses.fields(split_model.SplitModel)
  }
  return GuidedModel(
    **fields,
    trunk=model.backbone,
    target_branch=parts.identity(),
    client_branch=keras_parts.make_part(
      projection.client_branch(model.embedding_size, width, num_clients),
      parts.CLIENT_BRANCH,
    ),
    num_clients=num_clients,
  )


def require(model: split_model.SplitModel, algorithm: str) -> None:
  """Refuses a model without a guide for an algorithm that needs one.

  Args:
    model: The model.
    algorithm: The name of the algorithm, which needs the guide or the number of
      clients.

  Raises:
    ValueError: If the model has no guide.
  """
  if not isinstance(model, GuidedModel):
    raise ValueError(
      f"model {model.name!r} has no guide, which {algorithm} needs: see"
      " `guided_model.with_guide`"
    )
