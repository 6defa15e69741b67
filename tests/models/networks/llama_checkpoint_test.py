"""Tests of reading the folder of a pre-trained Llama."""

import json
import os
import pathlib

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

from tests.fixtures import tables
from tests.fixtures.arrays import assert_equal
from tff_shift._util import installed
from tff_shift.models.networks import llama_checkpoint
from tff_shift.models.networks import llama_random

_DATA = pathlib.Path(__file__).with_name("data")
_CONFIG = json.loads("""
{
  "model_type": "llama",
  "hidden_act": "silu",
  "vocab_size": 64,
  "hidden_size": 32,
  "intermediate_size": 48,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "rope_theta": 500000.0,
  "rms_norm_eps": 1e-5,
  "tie_word_embeddings": true,
  "rope_scaling": {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16
  }
}
""")


@pytest.fixture(scope="module")
def weights():
  """Those of the fixture, by the names of the files."""
  with np.load(_DATA / "oracle_llama3.npz") as arrays:
    return {
      name.removeprefix("w:"): arrays[name]
      for name in arrays
      if name.startswith("w:")
    }


@pytest.fixture
def write(tmp_path, weights):
  """Returns what writes a folder, in one file or in two."""

  def to_folder(changed_weights=None, num_files=1, **changed_config):
    config = _CONFIG | changed_config
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = weights | (changed_weights or {})
    given = {name: each for name, each in given.items() if each is not None}
    if num_files == 1:
      safetensors.numpy.save_file(given, tmp_path / "model.safetensors")
      return tmp_path
    files = {
      name: f"model-{place % num_files + 1:05}-of-{num_files:05}.safetensors"
      for place, name in enumerate(sorted(given))
    }
    for file in set(files.values()):
      own = {name: given[name] for name in given if files[name] == file}
      safetensors.numpy.save_file(own, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(
      json.dumps({"metadata": {}, "weight_map": files})
    )
    return tmp_path

  return to_folder


@pytest.mark.parametrize("num_files", [1, 3])
def test_weights_are_those_of_the_files(write, weights, num_files):
  # `lm_head` may be another matrix: it is not read.
  untied = {"lm_head.weight": np.ones([64, 32], np.float32)}
  folder = write(untied, num_files, tie_word_embeddings=False)
  config, base = llama_checkpoint.read(folder)
  assert (config.head_size, config.mlp_width) == (8, 48)
  assert config.rope_scaling == llama_checkpoint.RopeScaling(
    factor=32.0, low_frequency=1.0, high_frequency=4.0, original_length=16
  )
  assert_equal(base.embedding, weights["model.embed_tokens.weight"])
  for name, of_file in (
    ("query", "self_attn.q_proj"),
    ("output", "self_attn.o_proj"),
    ("gate", "mlp.gate_proj"),
    ("down", "mlp.down_proj"),
    ("mlp_norm", "post_attention_layernorm"),
  ):
    assert_equal(
      getattr(base.layers[1], name),
      weights[f"model.layers.1.{of_file}.weight"].T,
    )
  assert_equal(base.norm, weights["model.norm.weight"])


def test_random_model_is_read_as_it_was_written(tmp_path):
  config = llama_checkpoint.Config(
    vocabulary_size=7,
    width=8,
    num_layers=2,
    num_heads=4,
    num_key_value_heads=2,
    head_size=2,
    mlp_width=6,
  )
  llama_random.write(tmp_path, config, seed=3)
  found, base = llama_checkpoint.read(tmp_path)
  assert found == config
  assert {each.dtype for each in tf.nest.flatten(base)} == {tf.bfloat16}
  written = safetensors.numpy.load_file(tmp_path / "model.safetensors")
  assert (
    base.layers[0].key.numpy().tobytes()
    == written["model.layers.0.self_attn.k_proj.weight"].T.tobytes()
  )
  llama_random.write(tmp_path / "again", config, seed=4)
  _, other = llama_checkpoint.read(tmp_path / "again")
  assert (other.embedding.numpy() != base.embedding.numpy()).any()


def refusal(folder, kind=ValueError):
  with pytest.raises(kind) as error:
    llama_checkpoint.read(folder)
  assert "\n" not in str(error.value)
  return str(error.value)


_NORM = "model.norm.weight"


@pytest.mark.parametrize(
  "changed, message",
  [
    *tables.cases("""
{"model_type": "mistral"}
    'mistral' - at `$.model_type`
{"hidden_act": "gelu"}
    'gelu' - at `$.hidden_act`
{"attention_bias": True}
    attention_bias is true, and must be false
{"num_hidden_layers": 1}
    Expected `int` >= 2 - at `$.num_hidden
{"num_hidden_layers": 1000000000}
    Expected `int` <= 4096 - at `$.num_h
{"num_attention_heads": 0}
    Expected `int` >= 1 - at `$.num_at
{"num_key_value_heads": 3}
    a divisor of 4
{"hidden_size": "32"}
    Expected `int`, got `str` - at `$.hid
{"head_dim": 7}
    head_dim is 7, and must be even
{"rope_scaling": {"rope_type": "yarn"}}
    'yarn' - at `$.rope_scaling.rope_type`
{"rope_parameters": {"rope_theta": 5e5}}
    Expected `null`, got `object` - at `$.rope_parameters`
{"intermediate_size": 40}
    is [48, 32], and config.json declares [40, 32]
{"changed_weights": {"model.norm.weight": None}}
    the weight model.norm.weight is in none
"""),
    (
      {"rope_scaling": _CONFIG["rope_scaling"] | {"low_freq_factor": 4.0}},
      "low_freq_factor is 4.0, and must be below",
    ),
    (
      {"changed_weights": {_NORM: np.zeros(32, np.int8)}},
      f"{_NORM} is of type I8",
    ),
  ],
)
def test_what_does_not_fit_is_named(write, changed, message):
  folder = write(**changed)
  assert message in refusal(folder) and str(folder) in refusal(folder)


def test_what_is_missing_or_damaged_is_named(write, tmp_path):
  assert "config.json" in refusal(tmp_path, FileNotFoundError)
  folder = write(num_files=2)
  lost = folder / "model-00002-of-00002.safetensors"
  content = lost.read_bytes()
  lost.write_bytes(content[:1000])
  assert f"{lost} cannot be read as safetensors" in refusal(folder)
  lost.unlink()
  assert f"there is no {lost}" in refusal(folder, FileNotFoundError)
  (folder / "model.safetensors.index.json").unlink()
  assert "there is neither" in refusal(folder, FileNotFoundError)
  (folder / "config.json").write_text("[]")
  assert "config.json: Expected `object`, got `array`" in refusal(folder)


@pytest.mark.parametrize(
  "listed, message",
  [
    (None, "missing required field `weight_map`"),
    (3, "Expected `str`, got `int`"),
    ("../x", "and must be the name of a file"),
    ("/etc/passwd", "and must be the name of a file"),
    ("folder", "folder is a folder"),
    ("pipe", "pipe is a named pipe"),
  ],
)
def test_index_that_does_not_fit_is_named(write, listed, message):
  folder = write(num_files=2)
  os.mkdir(folder / "folder")
  os.mkfifo(folder / "pipe")
  index = folder / "model.safetensors.index.json"
  files = json.loads(index.read_text())["weight_map"] | {_NORM: listed}
  index.write_text(json.dumps({"weight_map": files} if listed else {}))
  assert message in refusal(folder)


def test_missing_package_says_what_brings_it():
  with pytest.raises(ValueError, match="no_such_package is missing") as error:
    installed.require_text("no_such_package.numpy")
  assert "tff_shift[text]" in str(error.value)
