"""Texts as tokens of a pre-trained model, by its own `tokenizer.json`."""

import pathlib
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from tff_shift._util import files
from tff_shift._util import installed
from tff_shift._util import records
from tff_shift.data import array_files

# After the last token of a text.
PADDING = -1
TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "config.json"

_UNKNOWN, _BEGIN = "<unk>", "<s>"


class ModelConfig(records.Record, forbid_unknown_fields=False):
  """The part of `config.json` that all language models share.

  Attributes:
    vocabulary_size: The number of tokens.
  """

  vocabulary_size: Annotated[int, msgspec.Meta(ge=1, le=2**24)] = msgspec.field(
    name="vocab_size"
  )


def tokenize(
  texts: Sequence[str], model_dir: pathlib.Path, length: int
) -> np.ndarray:
  """Converts texts to tokens of a fixed length.

  Args:
    texts: The texts.
    model_dir: The folder of the model, with tokenizer.json and config.json.
    length: Tokens per text, including those that the tokenizer adds in front.
      Longer texts keep their last tokens; shorter ones are padded at the end
      with `PADDING`.

  Returns:
    [len(texts), length] int32.

  Raises:
    FileNotFoundError: If a file is missing.
    ValueError: If the tokenizer cannot be used or belongs to another model, a
      text has no tokens, or the package tokenizers is missing; one line.
  """
  path = pathlib.Path(model_dir) / TOKENIZER_FILE
  try:
    files.check_regular(path)
  except FileNotFoundError as error:
    raise FileNotFoundError(
      f"there is no {path}; the folder of a pre-trained model has it beside"
      f" {CONFIG_FILE}"
    ) from error
  tokenizers = installed.require_text("tokenizers")
  try:
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    # Overrides the file's settings of padding and truncation.
    tokenizer.no_padding()
    tokenizer.enable_truncation(length, direction="left")
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
  # The library's errors have no common type.
  except Exception as error:
    raise ValueError(
      f"{path} cannot be used as a tokenizer ({array_files.first_line(error)});"
      " fetch the model again"
    ) from error
  ids = np.full((len(texts), length), PADDING, np.int32)
  for row, text, numbers in zip(ids, texts, encoded, strict=True):
    if not numbers:
      raise ValueError(f"{path} gives no token for the text {text!r}")
    row[: len(numbers)] = numbers
  _check_vocabulary(path, ids)
  return ids


def _check_vocabulary(path: pathlib.Path, ids: np.ndarray) -> None:
  """Refuses tokens that the model beside the tokenizer does not have."""
  config = path.with_name(CONFIG_FILE)
  read = records.read(config, ModelConfig, "fetch the model again")
  size = read.vocabulary_size
  if ids.size and ids.max() >= size:
    raise ValueError(
      f"{path} gives the token {ids.max()}, and {config} declares"
      f" {size} tokens: they are not of one model"
    )


def write_word_tokenizer(path: pathlib.Path, words: Sequence[str]) -> int:
  """Writes a tokenizer whose tokens are words, for generated texts.

  Args:
    path: The file.
    words: All words, without duplicates. Other words become the unknown token.

  Returns:
    The number of tokens: the words, the unknown token, and the begin of a text.
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
