"""A tiny Llama of random weights, with the words of the synthetic relations.

    python -m examples.tiny_llama --output_dir=runs/tiny_llama
    python -m experiments.online_adaptation \
        --flagfile=experiments/presets/online_adaptation/llama_demo.flags

Writes what the folder of a pre-trained model holds: config.json,
model.safetensors (bfloat16, 0.3 MB) and tokenizer.json. The model knows
nothing: what it classifies well it has learned with adapters and head.
"""

import pathlib
from collections.abc import Sequence

from absl import app
from absl import flags

from tff_shift.data import tokens
from tff_shift.data.datasets import synthetic_relations
from tff_shift.models import llama_checkpoint
from tff_shift.models import llama_random

_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "runs/tiny_llama", "The folder that is written."
)
_WIDTH = flags.DEFINE_integer(
  "width", 64, "Length of a hidden state, a multiple of 8."
)
_LAYERS = flags.DEFINE_integer("layers", 4, "Number of layers, at least 2.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the weights.")


def write(
  folder: pathlib.Path, width: int = 64, num_layers: int = 4, seed: int = 0
) -> None:
  """Writes the folder.

  Args:
    folder: The folder; it is made if missing.
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
    # As in Llama-3.2; the lengths are those of a tiny model.
    rope_theta=500000.0,
    rope_scaling=llama_checkpoint.RopeScaling(
      factor=32.0, low_frequency=1.0, high_frequency=4.0, original_length=16
    ),
  )
  llama_random.write(folder, config, seed)


def main(arguments: Sequence[str]) -> None:
  """Writes the folder that the flags ask for."""
  if len(arguments) > 1:
    raise app.UsageError(f"what is {arguments[1]!r}? All arguments are --flags")
  if _WIDTH.value < 8 or _WIDTH.value % 8 or _LAYERS.value < 2:
    raise app.UsageError(
      f"--width={_WIDTH.value} --layers={_LAYERS.value}: a multiple of 8 and at"
      " least 2 wanted"
    )
  try:
    write(
      pathlib.Path(_OUTPUT_DIR.value),
      _WIDTH.value,
      _LAYERS.value,
      _SEED.value,
    )
  except (OSError, ValueError) as error:
    raise app.UsageError(str(error)) from error
  print(f"written: {_OUTPUT_DIR.value}")


if __name__ == "__main__":
  app.run(main)
