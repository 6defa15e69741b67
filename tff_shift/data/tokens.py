"""Texts as the tokens of a pre-trained model, by its own `tokenizer.json`."""

import json
import pathlib
from collections.abc import Sequence

import numpy as np

from tff_shift import files
from tff_shift import installed
from tff_shift.data import array_files

# Behind the last token of a text.
PADDING = -1
TOKENIZER_FILE = "tokenizer.json"

_UNKNOWN, _BEGIN = "<unk>", "<s>"


def tokenize(
  texts: Sequence[str], model_dir: pathlib.Path, length: int
) -> np.ndarray:
  """Turns texts into tokens of one length.

  Args:
    texts: The texts.
    model_dir: The folder of the model, with tokenizer.json and config.json.
    length: Tokens of a text, those that the tokenizer puts before it included.
      Of a longer one the last count; behind a shorter one stands `PADDING`.

  Returns:
    [len(texts), length] int32.

  Raises:
    FileNotFoundError: If a file is not there.
    ValueError: If the tokenizer cannot be used or is of another model, a text
      has no token, or the package tokenizers is missing; one line.
  """
  path = pathlib.Path(model_dir) / TOKENIZER_FILE
  if not path.is_file():
    raise FileNotFoundError(
      f"there is no {path}; the folder of a pre-trained model has it beside"
      " config.json"
    )
  tokenizers = installed.require_text("tokenizers")
  try:
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    # What the file says of them is for another use.
    tokenizer.no_padding()
    tokenizer.enable_truncation(length, direction="left")
    encoded = [each.ids for each in tokenizer.encode_batch(list(texts))]
  # The library's errors have no type of their own.
  except Exception as error:
    raise ValueError(
      f"{path} cannot be used as a tokenizer ({array_files.first_line(error)});"
      " fetch the model again"
    ) from error
  found = np.full((len(texts), length), PADDING, np.int32)
  for row, text, numbers in zip(found, texts, encoded, strict=True):
    if not numbers:
      raise ValueError(f"{path} gives no token for the text {text!r}")
    row[: len(numbers)] = numbers
  _check_vocabulary(path, found)
  return found


def _check_vocabulary(path: pathlib.Path, found: np.ndarray) -> None:
  """Refuses tokens that the model beside the tokenizer does not have."""
  config = path.with_name("config.json")
  try:
    size = int(json.loads(config.read_text(encoding="utf-8"))["vocab_size"])
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f"{config} cannot be read, or has no vocab_size; fetch the model again"
    ) from error
  if found.size and found.max() >= size:
    raise ValueError(
      f"{path} gives the token {found.max()}, and {config} says that there are"
      f" {size}: they are not of one model"
    )


def write_word_tokenizer(path: pathlib.Path, words: Sequence[str]) -> int:
  """Writes a tokenizer whose tokens are words, as of generated texts.

  Args:
    path: The file.
    words: All words, none twice. Any other one is the token of what is unknown.

  Returns:
    The number of tokens: the words, the unknown, and the begin of a text.
  """
  tokenizers = installed.require_text("tokenizers")
  vocabulary = {
    word: token for token, word in enumerate([_UNKNOWN, _BEGIN, *words])
  }
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(vocabulary, unk_token=_UNKNOWN)
  )
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
    single=f"{_BEGIN} $A", special_tokens=[(_BEGIN, vocabulary[_BEGIN])]
  )
  files.write_atomically(path, tokenizer.to_str(pretty=True))
  return len(vocabulary)
