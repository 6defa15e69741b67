"""Compares every layer of Keras, and every argument of its call, with Keras.

  python -m benchmarks.keras_layers
  python -m benchmarks.keras_layers --keras_3
  python -m benchmarks.keras_layers --layers=GRU,Attention

For each layer of `tf.keras`, or of Keras 3, a model that has this layer is
converted by `models.from_keras`: called plainly, on a sequence with a mask, and
once with each argument that its `call` takes. Prints a Markdown table; layers
with equal cells share a row:

  equal    calls whose logits in evaluation and in training, gradients and
           running statistics are Keras's, to 1e-4 of the largest number or of 1
  drawn    calls with random numbers in training, whose logits have the means
           and variances of Keras's over 100 draws; in evaluation they are equal
  refused  calls that `from_keras` refuses, with its line

Calls that Keras itself refuses are left out. Ends with exit code 1 if a call is
neither equal nor refused in one line.
"""

import collections
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags
from absl import logging

from tff_shift import models
from tff_shift.models import modes
from tff_shift.models import split_model
from tff_shift.models.keras import keras_3
from tff_shift.models.keras import layer_names

_KERAS_3 = flags.DEFINE_boolean("keras_3", False, "Layers of Keras 3.")
_LAYERS = flags.DEFINE_list(
  "layers", [], "Comma-separated names of layers. Default: all."
)

_BATCH, _NUM_DRAWS = 6, 100
# Draws of a few values, such as the width of RandomWidth, can be equal.
_NUM_REPEATS = 16
# In standard errors; there are some 2,000 comparisons.
_FARTHEST_MOMENT = 6.0
_TOLERANCE = 1e-4
_SHAPES = {
  "vector": (4,),
  "sequence": (5, 4),
  "image": (6, 6, 3),
  "volume": (4, 4, 4, 3),
  "signal": (64,),
  "frames_1d": (3, 5, 2),
  "frames_2d": (3, 5, 5, 2),
  "frames_3d": (3, 4, 4, 4, 2),
  "indices": (5,),
  "texts": (5,),
  "mask": (5,),
  "attention_mask": (5, 5),
  "state": (4,),
  "weights": (5,),
}
_DTYPES = {
  "indices": "int32",
  "texts": "string",
  "mask": "bool",
  "attention_mask": "bool",
}
# Classes that are no layers of a model, or wrap another framework or a file.
_WITHOUT_EXAMPLE = (
  "AbstractRNNCell",
  "FlaxLayer",
  "InputLayer",
  "InputSpec",
  "JaxLayer",
  "Layer",
  "MaxNumBoundingBoxes",
  "TFSMLayer",
  "TorchModuleWrapper",
  "Wrapper",
)
_MERGES = (
  "Add",
  "Average",
  "Concatenate",
  "Maximum",
  "Minimum",
  "Multiply",
  "Subtract",
)


class _Example(NamedTuple):
  """A layer in a model.

  Attributes:
    make: `(layers) -> layer`.
    kind: The kind of its inputs, of `_SHAPES`.
    operands: "list" or "arguments" for a layer of two inputs.
  """

  make: Callable[[Any], Any]
  kind: str
  operands: str = ""


def _base(layers: Any) -> Any:
  """A nested model: batch normalisation and dropout."""
  keras = sys.modules["keras"] if _KERAS_3.value else tf.keras
  return keras.Sequential(
    [
      layers.InputLayer(_SHAPES["sequence"]),
      layers.Dense(4),
      layers.BatchNormalization(),
      layers.Dropout(0.3),
    ]
  )


def _example(name: str, kind: str, *args, operands="", **options) -> _Example:
  return _Example(
    lambda layers: getattr(layers, name)(*args, **options), kind, operands
  )


def _examples() -> dict[str, _Example]:
  """Returns examples by the name of a layer and, in brackets, its variant."""
  vector = {
    "ActivityRegularization": {"l2": 0.1},
    "AlphaDropout": {"rate": 0.3},
    "Dense": {"units": 4},
    "Discretization": {
      "bin_boundaries": [0.0, 1.0],
      "output_mode": "multi_hot",
    },
    "Dropout": {"rate": 0.3},
    "ELU": {},
    "EinsumDense": {"equation": "ab,bc->ac", "output_shape": 5},
    "Flatten": {},
    "GaussianDropout": {"rate": 0.3},
    "GaussianNoise": {"stddev": 0.3},
    "Identity": {},
    "LayerNormalization": {},
    "LeakyReLU": {},
    "Normalization": {"mean": 0.5, "variance": 2.0},
    "PReLU": {},
    "RMSNormalization": {},
    "ReLU": {},
    "RepeatVector": {"n": 3},
    "Rescaling": {"scale": 2.0, "offset": 1.0},
    "Reshape": {"target_shape": (2, 2)},
    "ThresholdedReLU": {},
    "UnitNormalization": {},
  }
  # GRU and LSTM without the kernel for GPUs, which takes seconds to build.
  sequence = {
    "BatchNormalization": {"momentum": 0.6},
    "Conv1D": {"filters": 4, "kernel_size": 2},
    "Conv1DTranspose": {"filters": 4, "kernel_size": 2},
    "Cropping1D": {},
    "DepthwiseConv1D": {"kernel_size": 2},
    "GRU": {"units": 4, "reset_after": False},
    "GroupNormalization": {"groups": 2},
    "LSTM": {"units": 4, "recurrent_activation": "tanh"},
    "LocallyConnected1D": {"filters": 4, "kernel_size": 2},
    "Masking": {},
    "Permute": {"dims": (2, 1)},
    "SeparableConv1D": {"filters": 4, "kernel_size": 2},
    "SimpleRNN": {"units": 4},
    "Softmax": {},
    "SpatialDropout1D": {"rate": 0.3},
    "UpSampling1D": {},
    "ZeroPadding1D": {},
  }
  image = {
    "AugMix": {"value_range": (0, 1)},
    "AutoContrast": {"value_range": (0, 1)},
    "CenterCrop": {"height": 4, "width": 4},
    "ContrastLimitedAdaptiveHistogramEqualization": {"value_range": (0, 1)},
    "Conv2D": {"filters": 4, "kernel_size": 2},
    "Conv2DTranspose": {"filters": 4, "kernel_size": 2},
    "Cropping2D": {},
    "CutMix": {},
    "DepthwiseConv2D": {"kernel_size": 2},
    "Equalization": {"value_range": (0, 1)},
    "LocallyConnected2D": {"filters": 4, "kernel_size": 2},
    "MixUp": {},
    "RandAugment": {"value_range": (0, 1)},
    "RandomBrightness": {"factor": 0.2, "value_range": (0, 1)},
    "RandomColorDegeneration": {"factor": 0.2, "value_range": (0, 1)},
    "RandomColorJitter": {"brightness_factor": 0.2, "value_range": (0, 1)},
    "RandomContrast": {"factor": 0.2},
    "RandomCrop": {"height": 4, "width": 4},
    "RandomElasticTransform": {},
    "RandomErasing": {},
    "RandomFlip": {"mode": "horizontal"},
    "RandomGaussianBlur": {},
    "RandomGrayscale": {},
    "RandomHeight": {"factor": 0.2},
    "RandomHue": {"factor": 0.2, "value_range": (0, 1)},
    "RandomInvert": {"value_range": (0, 1)},
    "RandomPerspective": {},
    "RandomPosterization": {"factor": 4, "value_range": (0, 1)},
    "RandomRotation": {"factor": 0.1},
    "RandomSaturation": {"factor": 0.2, "value_range": (0, 1)},
    "RandomSharpness": {"factor": 0.2, "value_range": (0, 1)},
    "RandomShear": {"x_factor": 0.1},
    "RandomTranslation": {"height_factor": 0.2, "width_factor": 0.2},
    "RandomWidth": {"factor": 0.2},
    "RandomZoom": {"height_factor": 0.2},
    "Resizing": {"height": 4, "width": 4},
    "SeparableConv2D": {"filters": 4, "kernel_size": 2},
    "Solarization": {"value_range": (0, 1)},
    "SpatialDropout2D": {"rate": 0.3},
    "UpSampling2D": {},
    "ZeroPadding2D": {},
  }
  volume = {
    "Conv3D": {"filters": 4, "kernel_size": 2},
    "Conv3DTranspose": {"filters": 4, "kernel_size": 2},
    "Cropping3D": {},
    "SpatialDropout3D": {"rate": 0.3},
    "UpSampling3D": {},
    "ZeroPadding3D": {},
  }
  indices = {
    "CategoryEncoding": {"num_tokens": 7, "output_mode": "count"},
    "Embedding": {"input_dim": 7, "output_dim": 3},
    "Hashing": {"num_bins": 4, "output_mode": "multi_hot"},
    "IntegerLookup": {"vocabulary": [1, 2, 3], "output_mode": "multi_hot"},
    "ReversibleEmbedding": {"input_dim": 7, "output_dim": 3},
  }
  texts = {
    "StringLookup": {"vocabulary": ["a", "b"], "output_mode": "multi_hot"},
    "TextVectorization": {"vocabulary": ["a", "b"], "output_mode": "count"},
  }
  signal = {
    "MelSpectrogram": {"fft_length": 32, "sequence_stride": 16},
    "STFTSpectrogram": {
      "frame_length": 16,
      "frame_step": 8,
      "fft_length": 16,
      "expand_dims": True,
    },
  }
  of_kind: dict[str, dict[str, Any]] = {
    "vector": vector,
    "sequence": sequence,
    "image": image,
    "volume": volume,
    "indices": indices,
    "texts": texts,
    "signal": signal,
  }
  for rank, kind in enumerate(("sequence", "image", "volume"), 1):
    for pooling in ("Average", "Max"):
      of_kind[kind] |= {
        f"{pooling}Pooling{rank}D": {"pool_size": 2},
        f"Adaptive{pooling}Pooling{rank}D": {"output_size": 2},
        f"Global{pooling}Pooling{rank}D": {},
      }
    of_kind[f"frames_{rank}d"] = {
      f"ConvLSTM{rank}D": {"filters": 2, "kernel_size": 2}
    }
  examples = {
    name: _example(name, kind, **options)
    for kind, of_names in of_kind.items()
    for name, options in of_names.items()
  }
  for name in _MERGES:
    examples[name] = _example(name, "sequence", operands="list")
  cells = {
    "GRUCell": lambda layers: layers.GRUCell(4),
    "LSTMCell": lambda layers: layers.LSTMCell(4),
    "SimpleRNNCell": lambda layers: layers.SimpleRNNCell(4),
    "StackedRNNCells": lambda layers: layers.StackedRNNCells(
      [layers.GRUCell(3), layers.SimpleRNNCell(4)]
    ),
    "RNN": lambda layers: [layers.GRUCell(3), layers.SimpleRNNCell(4)],
    "SimpleRNNCell(dropout)": lambda layers: layers.SimpleRNNCell(
      4, dropout=0.3
    ),
  }
  for name, cell in cells.items():
    examples[name] = _Example(
      lambda layers, cell=cell: layers.RNN(cell(layers)), "sequence"
    )
  return examples | {
    "Activation": _example("Activation", "vector", "relu"),
    "AdditiveAttention": _example(
      "AdditiveAttention", "sequence", operands="list"
    ),
    "AdditiveAttention(dropout)": _example(
      "AdditiveAttention", "sequence", dropout=0.3, operands="list"
    ),
    "Attention": _example("Attention", "sequence", operands="list"),
    "Attention(dropout)": _example(
      "Attention", "sequence", dropout=0.3, operands="list"
    ),
    "BatchNormalization(frozen)": _example(
      "BatchNormalization", "sequence", trainable=False
    ),
    "BatchNormalization(images)": _example("BatchNormalization", "image"),
    "Bidirectional": _Example(
      lambda layers: layers.Bidirectional(layers.GRU(4, reset_after=False)),
      "sequence",
    ),
    "Bidirectional(dropout)": _Example(
      lambda layers: layers.Bidirectional(layers.SimpleRNN(4, dropout=0.3)),
      "sequence",
    ),
    "DenseFeatures": _Example(
      lambda layers: layers.DenseFeatures(
        [tf.feature_column.numeric_column("x", 4)]
      ),
      "vector",
      "dictionary",
    ),
    "Dot": _example("Dot", "sequence", axes=2, operands="list"),
    "Embedding(mask_zero)": _Example(
      lambda layers: layers.Embedding(7, 3, mask_zero=True), "indices"
    ),
    "GRU(dropout)": _example(
      "GRU", "sequence", 4, recurrent_dropout=0.3, reset_after=False
    ),
    "GRU(sequences)": _example(
      "GRU", "sequence", 4, return_sequences=True, reset_after=False
    ),
    "GroupQueryAttention": _example(
      "GroupQueryAttention", "sequence", 3, 2, 1, operands="arguments"
    ),
    "HashedCrossing": _example(
      "HashedCrossing", "indices", 4, output_mode="one_hot", operands="list"
    ),
    "LSTM(dropout)": _example(
      "LSTM", "sequence", 4, dropout=0.3, recurrent_activation="tanh"
    ),
    "Lambda": _example("Lambda", "vector", lambda x: 2.0 * x),
    "Model": _Example(_base, "sequence"),
    "MultiHeadAttention": _example(
      "MultiHeadAttention", "sequence", 2, 3, operands="arguments"
    ),
    "MultiHeadAttention(dropout)": _example(
      "MultiHeadAttention", "sequence", 2, 3, dropout=0.3, operands="arguments"
    ),
    "Pipeline": _Example(
      lambda layers: layers.Pipeline([layers.Dense(4)]), "vector"
    ),
    "SpectralNormalization": _Example(
      lambda layers: layers.SpectralNormalization(layers.Dense(4)), "vector"
    ),
    "TimeDistributed": _Example(
      lambda layers: layers.TimeDistributed(layers.Dense(4)), "sequence"
    ),
    "TimeDistributed(dropout)": _Example(
      lambda layers: layers.TimeDistributed(layers.Dropout(0.3)), "sequence"
    ),
  }


def _class_of(name: str) -> str:
  return name.partition("(")[0]


def _known_classes(keras: Any) -> list[str]:
  """Returns the names of the layers of a generation, without aliases."""
  names: dict[type, str] = {}
  for name in sorted(dir(keras.layers)):
    kind = getattr(keras.layers, name)
    if inspect.isclass(kind) and name not in _WITHOUT_EXAMPLE:
      # Of several names the class's own, if it is one of them.
      names[kind] = name if name == kind.__name__ else names.get(kind, name)
  return list(names.values())


class _Call(NamedTuple):
  """A way to call a layer.

  Attributes:
    shown: What the table shows.
    arguments: Values of arguments; texts name further inputs of the model.
    masks: How many of the operands carry a mask.
  """

  shown: str
  arguments: Mapping[str, Any] = {}
  masks: int = 0


def _calls(layer: Any, example: _Example) -> Iterator[_Call]:
  """Yields the ways to call a layer."""
  yield _Call("plain")
  is_pair = example.operands in ("list", "arguments")
  if example.kind == "sequence":
    yield _Call("masked", masks=1)
    if is_pair:
      yield _Call("both masked", masks=2)
  if isinstance(layer, tf.keras.Model) or keras_3.is_keras_3(layer):
    names = ["training", "mask"]
  else:
    names = list(inspect.signature(layer.call).parameters)[1:]
  states = 2 if type(layer).__name__ in ("LSTM", "Bidirectional") else 1
  cells = getattr(getattr(layer, "cell", None), "cells", None)
  values = {
    "training": (False, True),
    "mask": (["mask", "mask"] if example.operands == "list" else "mask",),
    "attention_mask": ("attention_mask",),
    "query_mask": ("mask",),
    "value_mask": ("mask",),
    "key_mask": ("mask",),
    "key": ("second",),
    "use_causal_mask": (True,),
    "return_attention_scores": (True,),
    "initial_state": (["state"] * states if not cells else ["state"] * 2,),
    "states": (["state"],),
    "count_weights": ("weights",),
    "reverse": (True,),
  }
  if type(layer).__name__ == "RNN":
    is_lstm = type(layer.cell).__name__ == "LSTMCell"
    if is_lstm:
      values["initial_state"] = (["state"] * 2,)
  for name in names:
    for value in values.get(name, ()):
      shown = name if value is not False and value is not True else ""
      yield _Call(shown or f"{name}={value}", {name: value})


def _build(keras: Any, example: _Example, call: _Call) -> Any:
  """Builds a model of the layer between dense layers."""
  layers = keras.layers
  inputs = {}

  def tensor(name):
    if name not in inputs:
      inputs[name] = layers.Input(
        _SHAPES[name], dtype=_DTYPES.get(name, "float32"), name=name
      )
    return inputs[name]

  x = tensor(example.kind)
  operands = []
  for number in range(2):
    y = x
    if number < call.masks:
      y = layers.Masking()(y)
    if example.kind in ("vector", "sequence"):
      # The masked steps are not 0.
      y = layers.Dense(4)(y)
    operands.append(y)

  def value_of(value):
    if isinstance(value, list):
      return [value_of(item) for item in value]
    if value == "second":
      return operands[1]
    return tensor(value) if isinstance(value, str) else value

  arguments = {key: value_of(value) for key, value in call.arguments.items()}
  layer = example.make(layers)
  args: list[Any]
  if example.operands == "list":
    args = [operands]
  elif example.operands == "arguments":
    args = operands
  elif example.operands == "dictionary":
    args = [{"x": operands[0]}]
  else:
    args = operands[:1]
  y = layer(*args, **arguments)
  if type(layer).__name__ in ("RandomHeight", "RandomWidth"):
    y = layers.GlobalAveragePooling2D()(y)
  outputs = list(y) if isinstance(y, list | tuple) else [y]
  flat = [layers.Flatten()(output) for output in outputs]
  if len(outputs[0].shape) == 3:
    # By its mask, if it has one.
    flat.append(layers.GlobalAveragePooling1D()(outputs[0]))
  y = layers.Concatenate()(flat) if len(flat) > 1 else flat[0]
  y = layers.Dense(3)(y)
  return keras.Model(list(inputs.values()) if len(inputs) > 1 else x, y)


def _randomize(model: Any) -> None:
  """Gives all weights values that differ; variances are above 0."""
  generator = np.random.default_rng(4)
  for weight in model.weights:
    if tf.as_dtype(weight.dtype).is_floating:
      weight.assign(generator.uniform(0.1, 0.9, weight.shape))


def _features(name: str) -> np.ndarray:
  """Returns a batch for an input; some sequences end in steps of zeros."""
  generator = np.random.default_rng(5)
  shape = (_BATCH, *_SHAPES[name])
  lengths = np.array([5, 3, 2, 4, 1, 5])[:, np.newaxis]
  is_present = np.arange(5) < lengths
  if name == "mask":
    return is_present.astype(np.float32)
  if name == "attention_mask":
    return np.broadcast_to(np.tri(5), shape).astype(np.float32)
  if name == "indices":
    return (generator.integers(1, 7, shape) * is_present).astype(np.int32)
  values = generator.normal(size=shape).astype(np.float32)
  if name == "sequence":
    return values * is_present[..., np.newaxis]
  if name == "weights" or name == "image":
    return (values - values.min()) / np.ptp(values)
  return values


class _Model(NamedTuple):
  """A model of Keras and its conversion.

  Attributes:
    theirs: `(training) -> logits` of Keras.
    ours: `(seed or None) -> logits`; a seed is of training.
    keras_model: The model of Keras.
    converted: The conversion.
    weights: Its weights.
  """

  theirs: Callable[[bool], tf.Tensor]
  ours: Callable[[Any], tf.Tensor]
  keras_model: Any
  converted: split_model.SplitModel
  weights: split_model.SplitWeights


def _batch(keras_model: Any) -> list[tf.Tensor]:
  names = [tensor.name.split(":")[0] for tensor in keras_model.inputs]
  return [
    tf.cast(_features(name), tensor.dtype)
    for name, tensor in zip(names, keras_model.inputs, strict=True)
  ]


def _call(keras_model: Any, training: bool) -> tf.Tensor:
  batch = _batch(keras_model)
  return keras_model(batch[0] if len(batch) == 1 else batch, training=training)


def _convert(keras_model: Any) -> _Model:
  names = [tensor.name.split(":")[0] for tensor in keras_model.inputs]
  batch = _batch(keras_model)
  slices, start = {}, 0
  for name, values in zip(names, batch, strict=True):
    size = int(np.prod(values.shape[1:]))
    slices[name] = slice(start, start + size)
    start += size
  is_one = len(names) == 1
  converted = models.from_keras(
    keras_model, initial="given", inputs=None if is_one else slices
  )
  x = batch[0]
  if not is_one:
    x = tf.concat(
      [
        tf.reshape(tf.cast(values, tf.float32), [_BATCH, -1])
        for values in batch
      ],
      axis=1,
    )
  weights = converted.initial_weights(tf.constant([1, 2]))

  def ours(seed):
    if seed is None:
      return converted.predict(weights, x)
    with modes.training(lambda: seed):
      return converted.predict(weights, x)

  return _Model(
    functools.partial(_call, keras_model),
    ours,
    keras_model,
    converted,
    weights,
  )


def _difference(ours: Any, theirs: Any) -> float:
  """Returns the largest difference, relative to the largest number or to 1."""
  ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
  return float(np.max(np.abs(ours - theirs)) / max(1, np.max(np.abs(theirs))))


def _compare(model: _Model) -> str:
  """Returns "equal", "drawn" or the wrong quantity and its difference."""
  seed = tf.constant([1, 2])
  differences = {"logits": _difference(model.ours(None), model.theirs(False))}
  factors = np.random.default_rng(6).normal(size=(_BATCH, 3))
  factors = factors.astype(np.float32)
  variables = [
    variable.value if _KERAS_3.value else variable
    for variable in model.keras_model.trainable_variables
  ]
  # Weights are created in another order; their values tell them apart.
  positions = [variable.numpy().tobytes() for variable in variables]
  with tf.GradientTape() as tape:
    y = model.theirs(True)
    loss = tf.reduce_sum(y * factors)
  gradients = dict(
    zip(
      positions,
      map(
        tf.convert_to_tensor,
        tape.gradient(loss, variables, unconnected_gradients="zero"),
      ),
      strict=True,
    )
  )
  statistics = [
    np.asarray(weight)
    for weight in model.keras_model.weights
    if "moving" in weight.name
  ]
  flat = tf.nest.flatten(model.weights)
  with (
    modes.with_statistics(model.converted.statistics) as moved,
    tf.GradientTape() as tape,
  ):
    tape.watch(flat)
    ours = model.ours(seed)
    loss = tf.reduce_sum(ours * factors)
  if model.converted.statistics:  # Those of a frozen layer are weights.
    differences["statistics"] = max(
      _difference(value, wanted)
      for value, wanted in zip(moved.values(), statistics, strict=True)
    )
  if all(np.array_equal(y, model.theirs(True)) for _ in range(_NUM_REPEATS)):
    differences["logits in training"] = _difference(ours, y)
    ours = map(
      tf.convert_to_tensor,
      tape.gradient(loss, flat, unconnected_gradients="zero"),
    )
    differences["gradients"] = max(
      _difference(gradient, gradients[weight.numpy().tobytes()])
      for gradient, weight in zip(ours, flat, strict=True)
    )
    verdict = "equal"
  else:
    verdict = "drawn"
    farthest = _farthest_moment(model)
    if farthest > _FARTHEST_MOMENT:
      return f"WRONG: moments differ by {farthest:.1f} standard errors"
  wrong = [
    f"{name} by {difference:.2g}"
    for name, difference in differences.items()
    if not difference <= _TOLERANCE
  ]
  return f"WRONG: {', '.join(wrong)}" if wrong else verdict


def _farthest_moment(model: _Model) -> float:
  """Compares means and variances over draws, in standard errors."""

  @tf.function
  def ours(seed):
    with modes.with_statistics(model.converted.statistics):
      return model.ours(seed)

  # Not in a graph, where masks of a recurrent layer of Keras can be equal.
  draws = np.array(
    [
      (ours(tf.constant([number, 7])), model.theirs(True))
      for number in range(_NUM_DRAWS)
    ],
    float,
  )
  squares = (draws - draws.mean((0, 1))) ** 2
  farthest = 0.0
  for moments in (draws, squares):
    means, errors = moments.mean(0), moments.std(0) / np.sqrt(_NUM_DRAWS)
    scale = np.sqrt(np.sum(errors**2, 0)) + _TOLERANCE
    farthest = max(farthest, np.max(np.abs(means[0] - means[1]) / scale))
  return farthest


def _verdict(keras: Any, example: _Example, call: _Call) -> str:
  """Returns the outcome of a call; "" if Keras refuses it."""
  keras.backend.clear_session()
  try:
    keras_model = _build(keras, example, call)
    _randomize(keras_model)
    # A mask that only the built layer refuses.
    _call(keras_model, training=False)
  except Exception as error:
    logging.info("%s: %s", call.shown, error)
    return ""
  try:
    model = _convert(keras_model)
  except ValueError as error:
    reason = str(error)
    is_line = len(reason.splitlines()) == 1 and reason.startswith("model '")
    return f"refused: {reason}" if is_line else f"WRONG: {reason}"
  return _compare(model)


def _reason(name: str, verdict: str) -> str:
  """Shortens a refusal: without the names of layers that Keras numbers."""
  kind = layer_names.snake_case(_class_of(name))
  reason = re.sub(r"^refused: model '\w+': ", "", verdict)
  return re.sub(rf"'{kind}(_\d+)?'|{_class_of(name)}", "L", reason)


def main(_) -> None:
  """Compares all calls and prints the table."""
  logging.set_verbosity(logging.WARNING)
  keras = importlib.import_module("keras") if _KERAS_3.value else tf.keras
  examples = _examples()
  classes = _known_classes(keras)
  covered = {_class_of(name) for name in examples}
  missing = [name for name in classes if name not in covered]
  if missing:
    sys.exit(f"layers without an example: {', '.join(missing)}")
  known = sorted({*classes, "Model"})
  unknown = [name for name in _LAYERS.value if name not in known]
  if unknown:
    raise app.UsageError(
      f"--layers: unknown layer {unknown[0]!r}; known: {', '.join(known)}"
    )
  rows = collections.defaultdict(list)
  is_wrong = False
  for name in (
    name
    for kind in _LAYERS.value or known
    for name in sorted(examples)
    if _class_of(name) == kind
  ):
    example = examples[name]
    cells = collections.defaultdict(list)
    for call in _calls(example.make(keras.layers), example):
      verdict = _verdict(keras, example, call)
      print(f"{name}, {call.shown}: {verdict}", file=sys.stderr, flush=True)
      if verdict:
        cells[_reason(name, verdict)].append(call.shown)
        is_wrong |= verdict.startswith("WRONG")
    equal, drawn = (", ".join(cells.pop(key, ())) for key in ("equal", "drawn"))
    refused = "; ".join(
      f"{', '.join(calls)}: {reason}" for reason, calls in cells.items()
    )
    rows[equal, drawn, refused].append(name)
  print("| layer | equal | drawn | refused |\n| --- | --- | --- | --- |")
  for cells, names in rows.items():
    print(f"| {', '.join(names)} | {' | '.join(cells)} |")
  sys.exit(int(is_wrong))


if __name__ == "__main__":
  app.run(main)
