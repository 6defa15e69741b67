"""Digests that identify models, the same in every process.

Names and shapes of weights do not determine strides, numbers of groups or
activations. The graph that maps weights and examples to logits does, so a
digest of this graph identifies the function.

Choices:
  * The graph is that in evaluation and, if it differs, that in training with
    its penalty.
"""

import copy
import dataclasses
import functools
import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_shift.models import modes
from tff_shift.models import parts
from tff_shift.models import split_model


def function_digest(model: split_model.SplitModel) -> str:
  """Returns a digest of the function `(weights, x) -> logits` of a model.

  It does not depend on initial weights. It depends on frozen weights, which can
  be the only difference between two models, and on layers that act only in
  training, such as dropout and regularizers.

  Returns:
    A SHA-256 digest of 64 hexadecimal digits. Equal digests mean equal
    operations in equal order, and equal frozen weights, in any process and with
    any release of TensorFlow that builds the same operations.
  """
  frozen = tf.nest.flatten((model.backbone.frozen, model.head.frozen))
  digest, in_training = (
    _graph_digest(model, is_training) for is_training in (False, True)
  )
  if in_training != digest:
    digest = hashlib.sha256((digest + in_training).encode()).hexdigest()
  return _digest_values(digest, frozen) if frozen else digest


def frozen_digest(model: split_model.SplitModel) -> str:
  """Returns the SHA-256 of the frozen weights of a model, 64 digits."""
  return _digest_values("", tf.nest.flatten(model.frozen))


def _graph_digest(model: split_model.SplitModel, is_training: bool) -> str:
  """Returns a digest of the graph of the logits and of the penalty, if any."""
  with tf.Graph().as_default():
    weights = split_model.SplitWeights(
      *(
        tuple(
          tf.compat.v1.placeholder(tf.float32, shape) for shape in part.shapes
        )
        for part in (model.backbone, model.head)
      )
    )
    # Frozen weights may be too large for graph constants.
    bound = dataclasses.replace(
      model,
      backbone=_with_placeholders(model.backbone),
      head=_with_placeholders(model.head),
    )
    x = tf.compat.v1.placeholder(model.input_dtype, (None, *model.input_shape))
    # In both graphs, which must be equal if no layer is random.
    seed = tf.compat.v1.placeholder(tf.int32, [2])
    with modes.training(lambda: seed) if is_training else modes.evaluation():
      results = [bound.predict(weights, x)]
      if is_training:
        results.append(modes.current().penalty())
    # What operations gain in later releases are attributes with a default.
    graph_def = tf.compat.v1.train.export_meta_graph(
      strip_default_attrs=True
    ).graph_def
  functions = {
    function.signature.name: function for function in graph_def.library.function
  }

  @functools.cache
  def digest_function(name: str) -> str:
    function = functions[name]
    return _digest_nodes(
      function.node_def,
      [argument.name for argument in function.signature.input_arg],
      [function.ret[out.name] for out in function.signature.output_arg],
      digest_function,
    )

  return _digest_nodes(
    graph_def.node,
    [],
    [each.name for each in results if each is not None],
    digest_function,
  )


def _with_placeholders(part: parts.Part) -> parts.Part:
  return part.with_frozen(
    tf.nest.map_structure(
      lambda value: tf.compat.v1.placeholder(value.dtype, value.shape),
      part.frozen,
    )
  )


def _digest_values(digest: str, values: Iterable[Any]) -> str:
  """Returns a digest of a digest and of arrays or eager tensors."""
  state = hashlib.sha256(digest.encode())
  for value in map(np.asarray, values):
    state.update(repr((value.dtype.name, value.shape)).encode())
    state.update(np.ascontiguousarray(value).view(np.uint8).data)
  return state.hexdigest()


def _digest_nodes(
  nodes: Iterable[Any], arguments, results, digest_function
) -> str:
  """Returns a digest of operations, independent of names.

  Names end in numbers that depend on what a process has built before. A node is
  therefore identified by its position in the order of creation and a function
  by its digest.
  """
  names = [*arguments, *(node.name for node in nodes)]
  numbers = {name: str(number) for number, name in enumerate(names)}

  def renumber(tensor: str) -> str:
    # `node`, `node:0`, `node:output:0`, or `^node` for a control dependency.
    name, *output = tensor.removeprefix("^").split(":")
    return ":".join([tensor[: tensor.startswith("^")] + numbers[name], *output])

  def describe(attribute: Any) -> bytes:
    attribute = copy.deepcopy(attribute)
    called = (
      [attribute.func] if attribute.HasField("func") else attribute.list.func
    )
    for function in called:
      function.name = digest_function(function.name)
    return attribute.SerializeToString(deterministic=True)

  description = [
    len(arguments),
    [renumber(tensor) for tensor in results],
    *(
      (
        node.op,
        [renumber(tensor) for tensor in node.input],
        # Devices and threads of the process, and TensorFlow's annotations.
        [
          (key, describe(node.attr[key]))
          for key in sorted(node.attr)
          if key != "config_proto" and not key.startswith("_")
        ],
      )
      for node in nodes
    ),
  ]
  return hashlib.sha256(repr(description).encode()).hexdigest()
