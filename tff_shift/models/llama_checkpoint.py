"""Folders of pre-trained Llama models, as Hugging Face publishes them.

    config.json                    what kind of network it is
    model.safetensors              the weights; or, in several files,
    model.safetensors.index.json   which weight is in which of
    model-00001-of-00002.safetensors, ...
    tokenizer.json                 how text becomes numbers: `data.tokens`

Weights keep their type (bfloat16, as published, is half of float32), and are
read one by one, so that there is one copy of them in memory.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift import installed
from tff_shift.data import array_files

# What a folder holds.
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = {"F32": tf.float32, "BF16": tf.bfloat16, "F16": tf.float16}


class Layer(NamedTuple):
  """The weights of a layer; matrices are [inputs, outputs].

  Attributes:
    attention_norm: [width].
    query: [width, num_heads * head_size].
    key: [width, num_key_value_heads * head_size].
    value: Likewise.
    output: [num_heads * head_size, width].
    mlp_norm: [width].
    gate: [width, mlp_width].
    up: Likewise.
    down: [mlp_width, width].
  """

  attention_norm: Any
  query: Any
  key: Any
  value: Any
  output: Any
  mlp_norm: Any
  gate: Any
  up: Any
  down: Any


class Base(NamedTuple):
  """The weights of the network.

  Attributes:
    embedding: [vocabulary_size, width].
    layers: A `Layer` for each.
    norm: [width].
  """

  embedding: Any
  layers: tuple[Layer, ...]
  norm: Any


# What a weight of a layer is called in the files.
_IN_FILES = Layer(
  attention_norm="input_layernorm",
  query="self_attn.q_proj",
  key="self_attn.k_proj",
  value="self_attn.v_proj",
  output="self_attn.o_proj",
  mlp_norm="post_attention_layernorm",
  gate="mlp.gate_proj",
  up="mlp.up_proj",
  down="mlp.down_proj",
)


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How positions are slowed down, `rope_type` llama3.

  Attributes:
    factor: How much slower slow ones become.
    low_frequency: Those with fewer turns in `original_length` do entirely.
    high_frequency: Those with more turns stay as they are.
    original_length: The number of tokens of the first training.
  """

  factor: float
  low_frequency: float
  high_frequency: float
  original_length: int


@dataclasses.dataclass(frozen=True)
class Config:
  """What kind of network it is.

  Attributes:
    vocabulary_size: The number of tokens.
    width: The length of a hidden state.
    num_layers: The number of layers.
    num_heads: The number of heads of attention.
    num_key_value_heads: How many keys and values these share.
    head_size: The length of a key.
    mlp_width: Units of the hidden layer of an MLP.
    rope_theta: The base of the positions' frequencies.
    norm_epsilon: What is added to a mean square.
    rope_scaling: How positions are slowed down. None: they are not.
  """

  vocabulary_size: int
  width: int
  num_layers: int
  num_heads: int
  num_key_value_heads: int
  head_size: int
  mlp_width: int
  rope_theta: float = 10000.0
  norm_epsilon: float = 1e-5
  rope_scaling: RopeScaling | None = None

  def shapes(self) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each weight in the files, [outputs, inputs]."""
    of_heads, of_keys = (
      number * self.head_size
      for number in (self.num_heads, self.num_key_value_heads)
    )
    of_layer = Layer(
      attention_norm=(self.width,),
      query=(of_heads, self.width),
      key=(of_keys, self.width),
      value=(of_keys, self.width),
      output=(self.width, of_heads),
      mlp_norm=(self.width,),
      gate=(self.mlp_width, self.width),
      up=(self.mlp_width, self.width),
      down=(self.width, self.mlp_width),
    )
    return {
      "model.embed_tokens.weight": (self.vocabulary_size, self.width),
      **{
        f"model.layers.{number}.{name}.weight": shape
        for number in range(self.num_layers)
        for name, shape in zip(_IN_FILES, of_layer, strict=True)
      },
      "model.norm.weight": (self.width,),
    }


def read(folder: str | os.PathLike[str]) -> tuple[Config, Base]:
  """Reads a pre-trained model.

  The matrix from hidden states to tokens (`lm_head`, which is the embedding's
  where these are tied) is not read: nothing here predicts tokens.

  Args:
    folder: The folder.

  Returns:
    What kind of network it is, and its weights: tensors in the type of the
    files, with matrices as [inputs, outputs].

  Raises:
    FileNotFoundError: If the folder or a file in it is not there.
    ValueError: If it is another architecture, a file is damaged, or a weight is
      missing or of another shape or type; one line that names the file. If the
      package safetensors is missing.
  """
  folder = pathlib.Path(folder)
  config = _read_config(folder / CONFIG_FILE)
  files = _files(folder)
  wanted = config.shapes()
  missing = sorted(set(wanted) - set(files))
  if missing:
    raise ValueError(
      f"{folder}: the weight {missing[0]} is in none of its files; fetch the"
      " model again"
    )
  weights = {}
  for path in dict.fromkeys(files[name] for name in wanted):
    own = {name: shape for name, shape in wanted.items() if files[name] == path}
    weights |= _read_file(path, own)
  return config, arrange(config, weights)


def arrange(config: Config, weights: Mapping[str, Any]) -> Base:
  """Returns the weights, by the names of the files, as the network has them.

  Args:
    config: What kind of network it is.
    weights: At least those of `config.shapes`, matrices as [inputs, outputs].
  """
  return Base(
    weights["model.embed_tokens.weight"],
    tuple(
      Layer(
        *(weights[f"model.layers.{number}.{name}.weight"] for name in _IN_FILES)
      )
      for number in range(config.num_layers)
    ),
    weights["model.norm.weight"],
  )


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  if not path.is_file():
    raise FileNotFoundError(
      f"there is no {path}; the folder of a pre-trained model has config.json,"
      " model*.safetensors and tokenizer.json"
    )
  try:
    found = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(found, dict):
      return found
  except (OSError, ValueError):
    pass
  raise ValueError(f"{path} is not the JSON file that it should be")


def _read_config(path: pathlib.Path) -> Config:
  """Reads what kind of network it is; refuses what is none of ours."""
  found = _read_json(path)

  def refuse(key, wanted):
    raise ValueError(
      f"{path}: {key} is {json.dumps(found.get(key))}, and must be {wanted}"
    )

  if found.get("model_type") != "llama":
    refuse("model_type", '"llama"')
  for key, allowed in (
    ("hidden_act", ("silu",)),
    ("attention_bias", (False, None)),
    ("mlp_bias", (False, None)),
  ):
    if found.get(key) not in allowed:
      refuse(key, json.dumps(allowed[0]))

  def number(key, kind=int, default=None):
    value = found.get(key)
    value = default if value is None else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value > 0 or kind(value) != value:
      refuse(key, "a whole number above 0" if kind is int else "above 0")
    return kind(value)

  width, num_heads = number("hidden_size"), number("num_attention_heads")
  config = Config(
    vocabulary_size=number("vocab_size"),
    width=width,
    num_layers=number("num_hidden_layers"),
    num_heads=num_heads,
    num_key_value_heads=number("num_key_value_heads", int, num_heads),
    head_size=number("head_dim", int, width // num_heads),
    mlp_width=number("intermediate_size"),
    rope_theta=number("rope_theta", float, 10000.0),
    norm_epsilon=number("rms_norm_eps", float, 1e-6),
    rope_scaling=_rope_scaling(found.get("rope_scaling"), path),
  )
  if config.num_layers < 2:
    refuse("num_hidden_layers", "at least 2: the first half has adapters")
  if num_heads % config.num_key_value_heads:
    refuse("num_key_value_heads", f"a divisor of {num_heads}, the heads")
  if config.head_size % 2:
    refuse("head_dim", "even")
  return config


def _rope_scaling(found: Any, path: pathlib.Path) -> RopeScaling | None:
  if found is None:
    return None
  keys = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
  )
  try:
    if found.get("rope_type", found.get("type")) != "llama3":
      raise ValueError
    factor, low, high, length = (float(found[key]) for key in keys)
    if not (factor > 0 and 0 < low < high and length > 0):
      raise ValueError
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f"{path}: rope_scaling is {json.dumps(found)}, and must be null or of"
      f" rope_type llama3 with {', '.join(keys)}"
    ) from error
  return RopeScaling(factor, low, high, int(length))


def _files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Returns the file of each weight."""
  single, index = folder / WEIGHTS_FILE, folder / _INDEX
  if single.is_file():
    return dict.fromkeys(_opened(single).keys(), single)
  if not index.is_file():
    raise FileNotFoundError(f"there is neither {single} nor {index}")
  listed = _read_json(index).get("weight_map")
  if not isinstance(listed, dict):
    raise ValueError(f"{index} has no weight_map; fetch the model again")
  found = {name: folder / str(file) for name, file in listed.items()}
  for path in found.values():
    if not path.is_file():
      raise FileNotFoundError(f"there is no {path}, which {index} lists")
  return found


def _opened(path: pathlib.Path) -> Any:
  """Opens a file of weights, which is mapped and not read."""
  safetensors = installed.require_text("safetensors")
  try:
    return safetensors.safe_open(path, framework="numpy")
  # Its errors for what is damaged have no type in common.
  except Exception as error:
    raise ValueError(
      f"{path} cannot be read as safetensors"
      f" ({array_files.first_line(error)}); fetch the model again"
    ) from error


def _read_file(
  path: pathlib.Path, wanted: Mapping[str, tuple[int, ...]]
) -> dict[str, tf.Tensor]:
  """Reads weights of a file, by name, matrices turned over."""
  opened = _opened(path)
  present = set(opened.keys())
  weights = {}
  for name, shape in wanted.items():
    if name not in present:
      raise ValueError(f"{path} has no weight {name}; fetch the model again")
    described = opened.get_slice(name)
    if tuple(described.get_shape()) != shape:
      raise ValueError(
        f"{path}: the shape of {name} is {list(described.get_shape())}, and"
        f" config.json says {list(shape)}"
      )
    if described.get_dtype() not in _DTYPES:
      raise ValueError(
        f"{path}: {name} is of type {described.get_dtype()}; it must be one of"
        f" {', '.join(_DTYPES)}"
      )
    array = opened.get_tensor(name)
    if len(shape) == 2 and not name.startswith("model.embed_tokens"):
      array = np.ascontiguousarray(array.T)
    # A tensor, and not an array: that is passed on without a copy.
    with tf.init_scope():
      weights[name] = tf.constant(array)
  return weights
