"""Llama with low-rank adapters: a frozen language model that classifies text.

The network: Llama 2 (Touvron et al., 2023) and The Llama 3 Herd of Models
(Grattafiori et al., 2024) - RMSNorm before each block, rotary positions in
halves, grouped queries, SwiGLU. The adapters: LoRA (Hu, Shen, Wallis,
Allen-Zhu, Li, Wang, Wang, Chen; ICLR 2022). Fed-ADE's experiment with LAMA
(Park, Joe, Kim, Im, Kwon; 2026, Table 7) shares "LoRA on q/k/v (layers 0-13)"
of Llama-3.2-3B, the first half of its layers.

The base is frozen (`parts.Part.frozen`): it has no gradients, no averages and
no copies in checkpoints. The adapters are the backbone's weights. A personal
linear head takes the last hidden state of an example's last token.

Choices:
  * Rank 8 and alpha 16 (`--lora_rank`, `--lora_alpha`); A uniform in +-1 /
    sqrt(width) and B zero, so that the model starts as the base; no dropout.
  * The head's input is the hidden state after the last normalisation; z is the
    mean of its directions.
  * The base is as in the files (bfloat16 as published), cast to float32 at each
    product; norms, softmax, adapters and head are in float32. A matrix is cast
    when it is needed, and again for the gradient. Control dependencies prevent
    TensorFlow from doing all casts first and from storing the results, a
    float32 copy of the base. They need a custom gradient; models are saved
    without it.
  * Padding is on the right, with -1, which no tokenizer produces: id 0 is a
    Llama token. The last token does not see the padding, so no mask is needed.
  * No library has Llama 3 for TensorFlow 2.14 with Keras 2: keras-nlp 0.12.1
    lacks the scaling of positions, transformers has no TensorFlow Llama. The
    test compares with fixtures of transformers 4.44.2 with torch 2.13.0, which
    cannot be installed beside TFF (typing-extensions).
  * Layers are not recomputed for the gradient. Activations grow with batch size
    times length times layers; at 4 times 32 tokens they are small compared to
    the base. With several GPUs each would need a copy of the base.
"""

import math
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift._util import draws
from tff_shift.data.texts import tokens as tokens_lib
from tff_shift.models import parts
from tff_shift.models import split_model
from tff_shift.models.keras import keras_parts
from tff_shift.models.networks import llama_checkpoint

# The projections with an adapter, in the order of a layer's weights.
ADAPTED = ("query", "key", "value")


class Adapter(NamedTuple):
  """A (kernel) += alpha / rank * down @ up.

  Attributes:
    down: The matrix A, [inputs, rank] float32.
    up: The matrix B, [rank, outputs] float32.
  """

  down: Any
  up: Any


@tf.custom_gradient
def _matmul(x, kernel):
  """Multiplies by a frozen matrix of any floating-point type, in float32.

  The matrix is cast when it is needed, and again for the gradient: keeping the
  cast matrices would hold the whole base in float32.
  """

  def times(factor, transpose):
    # Otherwise TensorFlow casts all matrices at once, before the first product,
    # and reuses these casts for the gradient.
    with tf.control_dependencies([factor]):
      cast = tf.cast(kernel, factor.dtype)
    return tf.matmul(factor, cast, transpose_b=transpose)

  def gradient(upstream):
    return times(upstream, True), None

  return times(x, False), gradient


def _normalize(x, scale, epsilon: float) -> tf.Tensor:
  """RMSNorm of the last axis."""
  mean_square = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
  return x * tf.math.rsqrt(mean_square + epsilon) * tf.cast(scale, x.dtype)


def frequencies(config: llama_checkpoint.Config) -> np.ndarray:
  """Returns the angle that a position adds to each pair, [head_size / 2].

  With a `RopeScaling`, low frequencies are divided by `factor`, and those
  between two wavelengths are interpolated ("llama3" of the published
  checkpoints).
  """
  exponents = np.arange(0, config.head_size, 2) / config.head_size
  angles = config.rope_theta**-exponents
  scaling = config.rope_scaling
  if scaling is None:
    return angles
  turns = scaling.original_length * angles / (2 * math.pi)
  kept = (turns - scaling.low_frequency) / (
    scaling.high_frequency - scaling.low_frequency
  )
  kept = np.clip(kept, 0, 1)
  return (1 - kept) * angles / scaling.factor + kept * angles


def _rotations(config, length) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns cosines and sines, [length, 1, head_size / 2] float32."""
  angles = tf.range(tf.cast(length, tf.float32))[:, tf.newaxis] * tf.constant(
    frequencies(config), tf.float32
  )
  angles = angles[:, tf.newaxis]
  return tf.cos(angles), tf.sin(angles)


def _rotate(x, rotations) -> tf.Tensor:
  """Rotates [batch, length, heads, head_size]; pairs span the two halves."""
  cosines, sines = rotations
  one, other = tf.split(x, 2, axis=-1)
  return tf.concat(
    [one * cosines - other * sines, other * cosines + one * sines], axis=-1
  )


def _attend(config, query, key, value) -> tf.Tensor:
  """Computes causal attention in which several heads share a key and a value.

  Args:
    config: The numbers of heads.
    query: [batch, length, num_heads, head_size] float32.
    key: [batch, length, num_key_value_heads, head_size] float32.
    value: [batch, length, num_key_value_heads, head_size] float32.

  Returns:
    [batch, length, num_heads * head_size] float32.
  """
  batch, length = tf.shape(query)[0], tf.shape(query)[1]
  groups = config.num_key_value_heads
  query = tf.reshape(query, [batch, length, groups, -1, config.head_size])
  scores = tf.einsum("blgqd,bmgd->bgqlm", query, key)
  scores /= math.sqrt(config.head_size)
  # Later positions, which include all padding, are masked.
  seen = tf.linalg.band_part(tf.ones([length, length], tf.bool), -1, 0)
  attention = tf.nn.softmax(tf.where(seen, scores, scores.dtype.min))
  mixed = tf.einsum("bgqlm,bmgd->blgqd", attention, value)
  return tf.reshape(mixed, [batch, length, config.num_heads * config.head_size])


def _project(x, kernel, adapter: Adapter | None, scale: float) -> tf.Tensor:
  """Returns x W, with an adapter x W + scale (x A) B; x is [n, inputs]."""
  projected = _matmul(x, kernel)
  if adapter is None:
    return projected
  return projected + scale * tf.matmul(tf.matmul(x, adapter.down), adapter.up)


def hidden_states(
  config: llama_checkpoint.Config,
  base: llama_checkpoint.Base,
  adapters: tuple[dict[str, Adapter], ...],
  scale: float,
  tokens,
) -> tf.Tensor:
  """Applies the network, up to the last normalisation.

  Args:
    config: The configuration of the network.
    base: Its weights.
    adapters: For each of the first layers, an adapter of each of `ADAPTED`. ():
      the base alone.
    scale: The factor of the adapters, alpha / rank.
    tokens: [batch, length] int32, padded at the end with `tokens.PADDING`.

  Returns:
    [batch, length, width] float32; undefined at padding.
  """
  batch, length = tf.shape(tokens)[0], tf.shape(tokens)[1]
  rotations = _rotations(config, length)
  rows = tf.reshape(tf.maximum(tokens, 0), [-1])
  # [batch * length, width], as all tensors below without heads.
  x = tf.cast(tf.gather(base.embedding, rows), tf.float32)
  for number, layer in enumerate(base.layers):
    own = adapters[number] if number < len(adapters) else {}
    normal = _normalize(x, layer.attention_norm, config.norm_epsilon)
    query, key, value = (
      tf.reshape(
        _project(normal, getattr(layer, name), own.get(name), scale),
        [batch, length, -1, config.head_size],
      )
      for name in ADAPTED
    )
    mixed = _attend(
      config, _rotate(query, rotations), _rotate(key, rotations), value
    )
    x += _matmul(
      tf.reshape(mixed, [-1, config.num_heads * config.head_size]),
      layer.output,
    )
    normal = _normalize(x, layer.mlp_norm, config.norm_epsilon)
    gated = tf.nn.silu(_matmul(normal, layer.gate)) * _matmul(normal, layer.up)
    x += _matmul(gated, layer.down)
  x = _normalize(x, base.norm, config.norm_epsilon)
  return tf.reshape(x, [batch, length, config.width])


def last_hidden_state(states, tokens) -> tf.Tensor:
  """Returns the hidden state of each example's last token, [batch, width].

  Args:
    states: [batch, length, width] float32.
    tokens: [batch, length] int32, padded at the end with `tokens.PADDING`.
  """
  num_tokens = tf.reduce_sum(
    tf.cast(tf.not_equal(tokens, tokens_lib.PADDING), tf.int32), axis=1
  )
  return tf.gather(states, tf.maximum(num_tokens - 1, 0), batch_dims=1)


def make_backbone(
  config: llama_checkpoint.Config,
  base: llama_checkpoint.Base,
  rank: int,
  alpha: float,
) -> parts.Part:
  """Makes the part from tokens to hidden states, with adapters as weights.

  Args:
    config: The configuration of the network.
    base: Its weights, arrays or tensors; they are not copied.
    rank: The rank of an adapter.
    alpha: The adapters' factor is alpha / rank.

  Returns:
    The part; it works in graphs and eagerly.
  """
  sizes = {
    "query": config.num_heads * config.head_size,
    "key": config.num_key_value_heads * config.head_size,
    "value": config.num_key_value_heads * config.head_size,
  }
  bound = 1 / math.sqrt(config.width)

  def draw_down(shape, seed):
    return draws.uniform(shape, seed, -bound, bound)

  def draw_up(shape, seed):
    del seed
    return tf.zeros(shape)

  num_adapted = config.num_layers // 2
  names, initializers, shapes = [], [], []
  for layer in range(num_adapted):
    for adapted in ADAPTED:
      names += [f"layer{layer}_{adapted}/{each}" for each in Adapter._fields]
      initializers += [draw_down, draw_up]
      shapes += [(config.width, rank), (rank, sizes[adapted])]

  def function(weights, tokens, frozen):
    pairs = iter(map(Adapter, weights[::2], weights[1::2]))
    adapters = tuple(
      {name: next(pairs) for name in ADAPTED} for _ in range(num_adapted)
    )
    states = hidden_states(config, frozen[0], adapters, alpha / rank, tokens)
    return tf.ensure_shape(
      last_hidden_state(states, tokens), [None, config.width]
    )

  return parts.Part(
    function=function,
    names=tuple(names),
    initializers=tuple(initializers),
    shapes=tuple(shapes),
    paths=parts.paths(parts.BACKBONE, len(names)),
    frozen=(base,),
  )


def build(
  input_shape: tuple[int, ...] = (32,),
  num_classes: int = 2,
  model_dir: str | None = None,
  lora_rank: int = 8,
  lora_alpha: float = 16.0,
  input_dtype: tf.DType = tf.int32,
) -> split_model.SplitModel:
  """Builds the classifier from a pre-trained Llama.

  Args:
    input_shape: The number of tokens of an example, including padding.
    num_classes: The number of classes.
    model_dir: The folder of the pre-trained model, see
      `llama_checkpoint.read`.
    lora_rank: The rank of the adapters.
    lora_alpha: The adapters' factor is lora_alpha / lora_rank.
    input_dtype: `tf.int32`.

  Returns:
    A `SplitModel` whose embedding is the hidden state of the last token. Its
    backbone's weights are the adapters of the first half of the layers.

  Raises:
    ValueError: If there is no folder, examples are not tokens, a number is
      below 1, or the model cannot be used, see `llama_checkpoint.read`.
    FileNotFoundError: If a file is missing.
  """
  if tf.as_dtype(input_dtype) != tf.int32 or len(input_shape) != 1:
    raise ValueError(
      "llama takes tokens, int32 [length]; the examples are"
      f" {tf.as_dtype(input_dtype).name} {list(input_shape)}"
    )
  if lora_rank < 1 or not lora_alpha > 0:
    raise ValueError(
      f"lora_rank={lora_rank} and lora_alpha={lora_alpha}: llama takes a rank"
      " of at least 1 and an alpha above 0"
    )
  if model_dir is None:
    raise ValueError(
      "llama needs model_dir, the folder of a pre-trained model (config.json,"
      " model*.safetensors, tokenizer.json)"
    )
  config, base = llama_checkpoint.read(model_dir)
  head = keras_parts.linear_head(config.width, num_classes)
  return split_model.SplitModel(
    name="llama",
    backbone=make_backbone(config, base, lora_rank, lora_alpha),
    head=keras_parts.make_part(head, parts.HEAD),
    input_shape=tuple(input_shape),
    input_dtype=tf.int32,
    num_classes=num_classes,
    embedding_size=config.width,
  )
