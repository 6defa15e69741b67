"""Llama models of random weights, in folders like published ones."""

import os
import pathlib

import msgspec
import numpy as np
import tensorflow as tf

from tff_shift._util import files
from tff_shift._util import installed
from tff_shift._util import records
from tff_shift.models.networks import llama_checkpoint


def write(
  folder: str | os.PathLike[str],
  config: llama_checkpoint.Config,
  seed: int,
  dtype: tf.DType = tf.bfloat16,
) -> None:
  """Writes a model of random weights, for tests, demonstrations and benchmarks.

  Args:
    folder: The folder, created if missing. It gets no tokenizer.
    config: The configuration of the network.
    seed: Seed of the weights.
    dtype: The type of the weights.

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
  described = llama_checkpoint.ConfigFile(
    **msgspec.structs.asdict(config),
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    hidden_act="silu",
    tie_word_embeddings=True,
  )
  records.write(folder / llama_checkpoint.CONFIG_FILE, described)
