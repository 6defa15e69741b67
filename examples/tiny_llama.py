"""Writes a tiny Llama with random weights, for the synthetic relations.

    python -m examples.tiny_llama --output_dir=runs/tiny_llama
    python -m experiments.online_adaptation \
        --flagfile=experiments/presets/online_adaptation/llama_demo.flags

Writes the files of a pre-trained model: config.json, model.safetensors
(bfloat16, 0.3 MB) and tokenizer.json. The model is not trained: its accuracy
comes from training adapters and head.
"""

import pathlib
import sys
from collections.abc import Sequence

from absl import app
from absl import flags

from tff_shift.data.datasets import synthetic_relations
from tff_shift.data.texts import tokens
from tff_shift.models.networks import llama_checkpoint
from tff_shift.models.networks import llama_random

FLAGS = flags.FLAGS


def write(
  folder: pathlib.Path, width: int = 64, num_layers: int = 4, seed: int = 0
) -> None:
  """Writes the folder.

  Args:
    folder: The folder, created if missing.
    width: Length of a hidden state, a multiple of 8.
    num_layers: The number of layers.
    seed: Seed of the weights.

  Raises:
    ValueError: If a package of the extra `text` is missing.
  """
  folder.mkdir(parents=True, exist_ok=True)
  vocabulary_size = tokens.write_word_tokenizer(
    folder / tokens.TOKENIZER_FILE, synthetic_relations.words()
  )
  config = llama_checkpoint.Config(
    vocabulary_size=vocabulary_size,
    width=width,
    num_layers=num_layers,
    num_heads=4,
    num_key_value_heads=2,
    head_size=width // 4,
    mlp_width=2 * width,
    # As in Llama-3.2, except for the lengths, which fit a tiny model.
    rope_theta=500000.0,
    norm_epsilon=1e-5,
    rope_scaling=llama_checkpoint.RopeScaling(
      factor=32.0, low_frequency=1.0, high_frequency=4.0, original_length=16
    ),
  )
  llama_random.write(folder, config, seed)


def main(arguments: Sequence[str]) -> None:
  """Writes the folder that the flags define."""

  def fail(message):
    print(f"tiny_llama: {message}", file=sys.stderr)
    sys.exit(2)

  if len(arguments) > 1:
    fail(f"unexpected positional argument {arguments[1]!r}")
  if FLAGS.width < 8 or FLAGS.width % 8 or FLAGS.layers < 2:
    fail(
      f"--width={FLAGS.width} --layers={FLAGS.layers}: the width must be a"
      " multiple of 8, and there must be at least 2 layers"
    )
  try:
    write(
      pathlib.Path(FLAGS.output_dir),
      FLAGS.width,
      FLAGS.layers,
      FLAGS.seed,
    )
  except (OSError, ValueError) as error:
    fail(error)
  print(f"written: {FLAGS.output_dir}")


if __name__ == "__main__":
  flags.DEFINE_string(
    "output_dir", "runs/tiny_llama", "Folder of the model to write."
  )
  flags.DEFINE_integer("width", 64, "Length of hidden states, a multiple of 8.")
  flags.DEFINE_integer("layers", 4, "Number of layers, at least 2.")
  flags.DEFINE_integer("seed", 0, "Seed of the weights.")
  app.run(main)
