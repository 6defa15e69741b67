"""The two-layer bidirectional LSTM for titles (Reddit).

Source: Federated Learning under Evolving Distribution Shifts, Appendix E.2: "a
two-layer bidirectional LSTM (BiLSTM) with a hidden dimension of 256". The word
embedding and both layers are the representation phi, whose vector is the last
output of each direction; one linear layer is the classifier. The paper does not
specify the word embedding, the pooling or phi.

S. Hochreiter and J. Schmidhuber, "Long Short-Term Memory" (Neural Computation
9(8), 1997), with the gates and the initial weights of Keras's LSTM. It is
written by hand because Keras's layer takes several times as long to trace and
to train in a client's loop: here both directions share a loop, which ends with
the longest title of a batch.

Choices:
  * The embedding has 100 values per word, trained from Keras's initial values
    (`--embedding_width`). No dropout.
  * phi is embedding and both layers, with the last outputs of the two
    directions, 512 features. The classifier is one linear layer, so `--head`
    has no effect. FedEvp's "last layer of phi" is the second layer, both
    directions.
  * Four rounds of FedAvg on synthetic titles with 16 units took 14 s of
    processor time, 33 s with Keras's layers, including 9 s to start the
    process; accuracies were the same to the digit.
  * The gradient of the embedding is dense. The default gradient of a lookup is
    a sum of slices, which some algorithms would have to treat separately. A
    custom gradient (`tf.custom_gradient`) would work as well, but TensorFlow
    then refuses to save a model that was imported into another graph.
"""

import tensorflow as tf

from tff_shift.data.texts import text
from tff_shift.models import parts
from tff_shift.models import split_model
from tff_shift.models.keras import keras_parts

_DIRECTIONS = ("forward", "backward")
# The weights of each direction, in the order of Keras's layer.
_KINDS = ("kernel", "recurrent_kernel", "bias")
_NUM_LAYERS = 2


def _lstm(inputs, is_word, weights) -> tf.Tensor:
  """Reads titles in both directions.

  Args:
    inputs: [length, batch, width] float32.
    is_word: [length, batch] bool; where it is False, the state does not change.
    weights: `_KINDS` of each direction.

  Returns:
    The output of each direction (the second axis) after each word in its own
    order, [length, 2, batch, units] float32.
  """
  count = len(_KINDS)
  kernel, recurrent_kernel, bias = (
    tf.stack(pair)
    for pair in zip(weights[:count], weights[count:], strict=True)
  )
  ordered = tf.stack([inputs, tf.reverse(inputs, [0])], axis=1)
  projected = tf.einsum("ldbi,dig->ldbg", ordered, kernel)
  projected += bias[:, tf.newaxis]
  moves = tf.stack([is_word, tf.reverse(is_word, [0])], axis=1)

  def read(state, word):
    cell, hidden = state
    gates, is_there = word
    gates += hidden @ recurrent_kernel
    gate_in, forget, candidate, gate_out = tf.split(gates, 4, axis=-1)
    new_cell = tf.sigmoid(forget) * cell
    new_cell += tf.sigmoid(gate_in) * tf.tanh(candidate)
    new_hidden = tf.sigmoid(gate_out) * tf.tanh(new_cell)
    is_there = is_there[..., tf.newaxis]
    return (
      tf.where(is_there, new_cell, cell),
      tf.where(is_there, new_hidden, hidden),
    )

  units = recurrent_kernel.shape[1]
  start = tf.zeros([len(_DIRECTIONS), tf.shape(inputs)[1], units])
  # Sequential; parallel iterations would keep the values of several in memory.
  _, hidden = tf.scan(
    read, (projected, moves), (start, start), parallel_iterations=1
  )
  return hidden


def _read(weights, x, frozen) -> tf.Tensor:
  """Maps titles [batch, length] int32 to vectors [batch, 2 * units]."""
  del frozen
  embeddings, *rest = weights
  is_word = tf.not_equal(x, text.PADDING)
  places = tf.where(is_word, tf.range(1, x.shape[1] + 1), 0)
  # The rest is padding in all titles. At least one position remains without
  # words, and the maximum of an empty batch is below 0.
  length = tf.maximum(tf.reduce_max(places), 1)
  tokens = tf.transpose(x[:, :length])
  is_word = tf.transpose(is_word[:, :length])

  # Through a reshape without effect, which makes the gradient dense, as for any
  # other weight: algorithms compute with gradients.
  states = tf.gather(tf.reshape(embeddings, embeddings.shape), tokens)
  per_layer = len(rest) // _NUM_LAYERS
  for start in range(0, len(rest), per_layer):
    outputs = _lstm(states, is_word, rest[start : start + per_layer])
    forward, backward = tf.unstack(outputs, axis=1)
    # For each word, the outputs of both directions on reaching it.
    states = tf.concat([forward, tf.reverse(backward, [0])], axis=-1)
  return tf.concat([forward[-1], backward[-1]], axis=-1)


def _backbone(
  vocabulary_size: int, embedding_width: int, width: int
) -> parts.Part:
  """Returns the embedding and the layers, with Keras's initial weights."""
  initializers = tf.keras.initializers
  zeros = keras_parts.stateless(initializers.Zeros())
  draws = {
    "kernel": keras_parts.stateless(initializers.GlorotUniform()),
    "recurrent_kernel": keras_parts.stateless(initializers.Orthogonal()),
    "bias": keras_parts.with_unit_forget_bias(zeros, width),
  }
  names = ["embedding/embeddings"]
  shapes: list[tuple[int, ...]] = [(vocabulary_size, embedding_width)]
  drawn = [keras_parts.stateless(initializers.RandomUniform(-0.05, 0.05))]
  for layer in range(_NUM_LAYERS):
    size = len(_DIRECTIONS) * width if layer else embedding_width
    shape_of = {
      "kernel": (size, 4 * width),
      "recurrent_kernel": (width, 4 * width),
      "bias": (4 * width,),
    }
    for direction in _DIRECTIONS:
      for kind in _KINDS:
        names.append(f"layer{layer + 1}_{direction}/{kind}")
        shapes.append(shape_of[kind])
        drawn.append(draws[kind])
  return parts.Part(
    function=_read,
    names=tuple(names),
    initializers=tuple(drawn),
    shapes=tuple(shapes),
    paths=parts.paths(parts.BACKBONE, len(names)),
  )


def build(
  input_shape: tuple[int, ...] = (30,),
  num_classes: int = 5,
  vocabulary_size: int = 20_002,
  embedding_width: int = 100,
  width: int = 256,
  input_dtype: tf.DType = tf.int32,
) -> split_model.SplitModel:
  """Builds the network.

  Args:
    input_shape: The length of a title, `(length,)`; padded with 0.
    num_classes: The number of classes.
    vocabulary_size: Tokens are from 0 to `vocabulary_size` - 1.
    embedding_width: The length of a word's vector.
    width: The units of each direction of each layer.
    input_dtype: `tf.int32`.

  Returns:
    A `SplitModel` with an embedding of `2 * width`.

  Raises:
    ValueError: If the examples are not titles, or a number is below 1.
  """
  input_dtype = tf.as_dtype(input_dtype)
  if input_dtype != tf.int32 or len(input_shape) != 1:
    raise ValueError(
      "model 'bi_lstm' takes titles, int32 [length], got"
      f" {input_dtype.name} {list(input_shape)}"
    )
  if min(vocabulary_size, embedding_width, width) < 1:
    raise ValueError(
      f"vocabulary_size={vocabulary_size}, embedding_width={embedding_width}"
      f" and width={width} of bi_lstm must be at least 1"
    )
  head = keras_parts.linear_head(len(_DIRECTIONS) * width, num_classes)
  return split_model.SplitModel(
    name="bi_lstm",
    backbone=_backbone(vocabulary_size, embedding_width, width),
    head=keras_parts.make_part(head, parts.HEAD),
    input_shape=tuple(input_shape),
    input_dtype=input_dtype,
    num_classes=num_classes,
    embedding_size=len(_DIRECTIONS) * width,
    vocabulary_size=vocabulary_size,
  )
