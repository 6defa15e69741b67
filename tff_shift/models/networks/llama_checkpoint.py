"""Folders of pre-trained Llama models, as published on Hugging Face.

    config.json                    the configuration of the network
    model.safetensors              the weights; or, in several files,
    model.safetensors.index.json   the file of each weight
    model-00001-of-00002.safetensors, ...
    tokenizer.json                 the tokenizer, see `data.texts.tokens`

Weights keep their type (bfloat16, as published, is half of float32), and are
read one by one, so that there is one copy of them in memory.
"""

import os
import pathlib
from collections.abc import Mapping
from typing import Annotated
from typing import Any
from typing import Literal
from typing import NamedTuple
from typing import TypeVar

import msgspec
import numpy as np
import tensorflow as tf

from tff_shift._util import files
from tff_shift._util import installed
from tff_shift._util import records
from tff_shift._util import shown_names
from tff_shift.data import array_files
from tff_shift.data.texts import tokens

# The files of a folder.
CONFIG_FILE = tokens.CONFIG_FILE
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_R = TypeVar("_R", bound=records.Record)
_Positive = Annotated[float, msgspec.Meta(gt=0)]
# Larger than in any model, and within the range of indices.
_Size = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
_DTYPES = {"F32": tf.float32, "BF16": tf.bfloat16, "F16": tf.float16}


class Layer(NamedTuple):
  """The weights of a layer; matrices are [inputs, outputs].

  Attributes:
    attention_norm: [width].
    query: [width, num_heads * head_size].
    key: [width, num_key_value_heads * head_size].
    value: [width, num_key_value_heads * head_size].
    output: [num_heads * head_size, width].
    mlp_norm: [width].
    gate: [width, mlp_width].
    up: [width, mlp_width].
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


# The names of a layer's weights in the files.
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


class RopeScaling(records.Record, kw_only=True):
  """The scaling of positions, `rope_type` llama3.

  Attributes:
    rope_type: The kind of scaling.
    kind: The kind of scaling, in older files.
    factor: The factor by which low frequencies are divided.
    low_frequency: Frequencies with fewer turns in `original_length` are divided
      entirely.
    high_frequency: Frequencies with more turns do not change.
    original_length: The number of tokens of the original training.
  """

  rope_type: Literal["llama3"] = "llama3"
  kind: Literal["llama3"] | msgspec.UnsetType = msgspec.field(
    default=msgspec.UNSET, name="type"
  )
  factor: _Positive
  low_frequency: _Positive = msgspec.field(name="low_freq_factor")
  high_frequency: _Positive = msgspec.field(name="high_freq_factor")
  original_length: records.PositiveInt = msgspec.field(
    name="original_max_position_embeddings"
  )

  def __post_init__(self):
    if not self.low_frequency < self.high_frequency:
      raise ValueError(
        f"low_freq_factor is {self.low_frequency}, and must be below"
        f" high_freq_factor, {self.high_frequency}"
      )


class Config(tokens.ModelConfig, kw_only=True):
  """The configuration of the network.

  Attributes:
    width: The length of a hidden state.
    num_layers: The number of layers.
    num_heads: The number of attention heads.
    num_key_value_heads: The number of keys and values. Default: `num_heads`.
    head_size: The length of a key. Default: `width` / `num_heads`.
    mlp_width: Units of the hidden layer of an MLP.
    rope_theta: The base of the positions' frequencies.
    norm_epsilon: Added to a mean square.
    rope_scaling: The scaling of positions. None: no scaling.
  """

  width: _Size = msgspec.field(name="hidden_size")
  # The first half has adapters.
  num_layers: Annotated[int, msgspec.Meta(ge=2, le=2**12)] = msgspec.field(
    name="num_hidden_layers"
  )
  num_heads: _Size = msgspec.field(name="num_attention_heads")
  num_key_value_heads: _Size | None = None
  head_size: _Size | None = msgspec.field(default=None, name="head_dim")
  mlp_width: _Size = msgspec.field(name="intermediate_size")
  rope_theta: _Positive | None = None
  norm_epsilon: _Positive | None = msgspec.field(
    default=None, name="rms_norm_eps"
  )
  rope_scaling: RopeScaling | None = None

  def __post_init__(self):
    for field, value in (
      ("num_key_value_heads", self.num_heads),
      ("head_size", max(1, self.width // self.num_heads)),
      ("rope_theta", 10000.0),
      ("norm_epsilon", 1e-6),
    ):
      if getattr(self, field) is None:
        msgspec.structs.force_setattr(self, field, value)
    if self.num_heads % self.num_key_value_heads:
      raise ValueError(
        f"num_key_value_heads is {self.num_key_value_heads}, and must be a"
        f" divisor of {self.num_heads}, num_attention_heads"
      )
    if self.head_size % 2:
      raise ValueError(f"head_dim is {self.head_size}, and must be even")

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


class ConfigFile(Config, kw_only=True):
  """`config.json`: a `Config`, with checks that it is a Llama.

  Other fields of such a file, on training and generation, are ignored.

  Attributes:
    model_type: The kind of network.
    architectures: The tasks, each with its own last layer.
    hidden_act: The activation of an MLP.
    attention_bias: Whether the matrices of attention have biases.
    mlp_bias: Whether the matrices of an MLP have biases.
    tie_word_embeddings: Whether the last layer shares the embedding's weights.
    rope_parameters: In later versions of the library, replaces `rope_theta` and
      `rope_scaling`; refused, since it is not read.
  """

  model_type: Literal["llama"]
  architectures: Any = msgspec.UNSET
  hidden_act: Literal["silu"]
  attention_bias: bool | None | msgspec.UnsetType = msgspec.UNSET
  mlp_bias: bool | None | msgspec.UnsetType = msgspec.UNSET
  tie_word_embeddings: bool | None | msgspec.UnsetType = msgspec.UNSET
  rope_parameters: None | msgspec.UnsetType = msgspec.UNSET

  def __post_init__(self):
    super().__post_init__()
    for field in ("attention_bias", "mlp_bias"):
      if getattr(self, field) is True:
        raise ValueError(f"{field} is true, and must be false")


class Index(records.Record, forbid_unknown_fields=False):
  """`model.safetensors.index.json`: the file of each weight."""

  weight_map: dict[str, str]

  def __post_init__(self):
    for weight, name in self.weight_map.items():
      if pathlib.PurePath(name).name != name or not name.isprintable():
        raise ValueError(
          f"weight_map.{weight} is {name!r}, and must be the name of a file"
          " beside it"
        )


def read(folder: str | os.PathLike[str]) -> tuple[Config, Base]:
  """Reads a pre-trained model.

  The matrix from hidden states to tokens (`lm_head`, or the embedding if tied)
  is not read: nothing here predicts tokens.

  Returns:
    The configuration of the network, and its weights: tensors in the type of
    the files, with matrices as [inputs, outputs].

  Raises:
    FileNotFoundError: If the folder or a file in it is missing.
    ValueError: If it is another architecture, a file is damaged, or a weight is
      missing or of another shape or type; one line that names the file. If the
      package safetensors is missing.
  """
  folder = pathlib.Path(folder)
  described = _read_record(folder / CONFIG_FILE, ConfigFile)
  config = Config(
    **{name: getattr(described, name) for name in Config.__struct_fields__}
  )
  file_of = _files(folder)
  wanted = config.shapes()
  missing = sorted(set(wanted) - set(file_of))
  if missing:
    single = folder / WEIGHTS_FILE
    raise ValueError(
      f"{single if single.exists() else folder / INDEX_FILE}: the weight"
      f" {missing[0]} is in none of its files; fetch the model again"
    )
  weights = {}
  for path in dict.fromkeys(file_of[name] for name in wanted):
    own = {
      name: shape for name, shape in wanted.items() if file_of[name] == path
    }
    weights |= _read_file(path, own)
  return config, arrange(config, weights)


def arrange(config: Config, weights: Mapping[str, Any]) -> Base:
  """Arranges weights with the files' names in the structure of the network.

  Args:
    config: The configuration of the network.
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


def _read_record(path: pathlib.Path, kind: type[_R]) -> _R:
  try:
    return records.read(path, kind, "fetch the model again")
  except FileNotFoundError as error:
    raise FileNotFoundError(
      f"there is no {path}; the folder of a pre-trained model has"
      f" {CONFIG_FILE}, model*.safetensors and tokenizer.json"
    ) from error


def _files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Returns the file of each weight."""
  single, index = folder / WEIGHTS_FILE, folder / INDEX_FILE
  if single.exists():
    return dict.fromkeys(_opened(single).keys(), single)
  if not index.exists():
    raise FileNotFoundError(f"there is neither {single} nor {index}")
  listed = _read_record(index, Index).weight_map
  for name in dict.fromkeys(listed.values()):
    try:
      files.check_regular(folder / name)
    except FileNotFoundError as error:
      raise FileNotFoundError(
        f"there is no {folder / name}, which {index} lists"
      ) from error
    except ValueError as error:
      raise ValueError(shown_names.line(f"{index} lists {error}")) from error
  return {weight: folder / name for weight, name in listed.items()}


def _opened(path: pathlib.Path) -> Any:
  """Opens a file of weights, memory-mapped."""
  files.check_regular(path)
  safetensors = installed.require_text("safetensors")
  try:
    return safetensors.safe_open(path, framework="numpy")
  # The library's errors for damaged files have no common type.
  except Exception as error:
    raise ValueError(
      f"{path} cannot be read as safetensors"
      f" ({array_files.first_line(error)}); fetch the model again"
    ) from error


def _read_file(
  path: pathlib.Path, wanted: Mapping[str, tuple[int, ...]]
) -> dict[str, tf.Tensor]:
  """Reads weights of a file, by name, with transposed matrices."""
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
        f" config.json declares {list(shape)}"
      )
    if described.get_dtype() not in _DTYPES:
      raise ValueError(
        f"{path}: {name} is of type {described.get_dtype()}; it must be one of"
        f" {', '.join(_DTYPES)}"
      )
    array = opened.get_tensor(name)
    if len(shape) == 2 and not name.startswith("model.embed_tokens"):
      array = np.ascontiguousarray(array.T)
    # A tensor, not an array, because tensors are passed without a copy.
    with tf.init_scope():
      weights[name] = tf.constant(array)
  return weights
