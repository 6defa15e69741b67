"""Llama models of random weights, in folders as published ones."""

import json
import os
import pathlib

import numpy as np
import tensorflow as tf

from tff_shift import files
from tff_shift import installed
from tff_shift.models import llama_checkpoint


def write(
  folder: str | os.PathLike[str],
  config: llama_checkpoint.Config,
  seed: int,
  dtype: tf.DType = tf.bfloat16,
) -> None:
  """Writes a model of random weights: for tests, demonstrations and measuring.

  Args:
    folder: The folder; it is made if missing. It gets no tokenizer.
    config: What kind of network it is.
    seed: Seed of the weights.
    dtype: Their type.

  Raises:
    ValueError: If the package safetensors is missing.
    files.WriteError: If it cannot be written.
  """
  safe_numpy = installed.require_text("safetensors.numpy")
  folder = pathlib.Path(folder)
  with files.writing(folder):
    folder.mkdir(parents=True, exist_ok=True)
  generator = np.random.default_rng(seed)

  def draw(name, shape):
    if len(shape) == 1:
      return np.ones(shape)
    scale = 1.0 if name.startswith("model.embed") else shape[1] ** -0.5
    return scale * generator.standard_normal(shape, np.float32)

  weights = {
    name: draw(name, shape).astype(dtype.as_numpy_dtype)
    for name, shape in config.shapes().items()
  }
  with files.replacing(folder / llama_checkpoint.WEIGHTS_FILE) as file:
    file.write(safe_numpy.save(weights))
  described = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "vocab_size": config.vocabulary_size,
    "hidden_size": config.width,
    "num_hidden_layers": config.num_layers,
    "num_attention_heads": config.num_heads,
    "num_key_value_heads": config.num_key_value_heads,
    "head_dim": config.head_size,
    "intermediate_size": config.mlp_width,
    "rope_theta": config.rope_theta,
    "rms_norm_eps": config.norm_epsilon,
    "rope_scaling": config.rope_scaling
    and {
      "rope_type": "llama3",
      "factor": config.rope_scaling.factor,
      "low_freq_factor": config.rope_scaling.low_frequency,
      "high_freq_factor": config.rope_scaling.high_frequency,
      "original_max_position_embeddings": config.rope_scaling.original_length,
    },
  }
  text = json.dumps(described, indent=2) + "\n"
  files.write_atomically(folder / llama_checkpoint.CONFIG_FILE, text)
