"""LAMA's facts of Wikidata, from the unpacked archive.

F. Petroni, T. Rocktäschel, S. Riedel, P. Lewis, A. Bakhtin, Y. Wu, A. Miller,
"Language Models as Knowledge Bases?" (EMNLP 2019), the part T-REx. In the
folder of all data sets:

    lama/relations.jsonl   {"relation": "P19", "label": "place of birth", ...}
    lama/TREx/P19.jsonl    {"sub_label": "...", "obj_label": "...", ...}
    lama/TREx/P20.jsonl, ...

Relations without a file are skipped, as in the authors' program.

Fed-ADE (Park, Joe, Kim, Im, Kwon; 2026), Appendix G.1, draws 100 examples of
each of 41 relations at random. It defines neither the classes nor the prompts.
Here the relation is the class, and a text is "subject, object": the words of
the relation's template would reveal the class.
"""

import pathlib
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_shift.data import dataset
from tff_shift.data import partition
from tff_shift.data import table
from tff_shift.data.texts import text_files
from tff_shift.data.texts import tokens

FOLDER = "lama"
URL = "https://dl.fbaipublicfiles.com/LAMA/data.zip"
NUM_RELATIONS = 41
EXAMPLES_PER_RELATION = 100
# Tokens per text: names are short.
LENGTH = 32


def prompt(subject: str, obj: str) -> str:
  """Returns the text of a fact."""
  return f"{subject}, {obj}"


def load(folder: pathlib.Path, model_dir: pathlib.Path) -> table.Table:
  """Loads the facts as tokens of a pre-trained model.

  Args:
    folder: The folder of all data sets.
    model_dir: The folder of the model, see `tokens.tokenize`.

  Returns:
    The data set, relation by relation in the order of relations.jsonl; a class
    has the name of its relation.

  Raises:
    ValueError: If a file has another content than the archive's, or the
      tokenizer cannot be used.
    FileNotFoundError: If the tokenizer is missing.
    DatasetNotFoundError: If the data set is not on the disk.
  """
  archive = folder / FOLDER
  relations = archive / "relations.jsonl"
  if not relations.is_file() or not (archive / "TREx").is_dir():
    zip_file = archive.with_suffix(".zip")
    raise dataset.not_found(
      "lama",
      archive,
      f'mkdir -p "{folder}" && curl -L "{URL}" -o "{zip_file}" && unzip -q'
      f' "{zip_file}" -d "{folder}" && mv "{folder / "data"}" "{archive}"',
    )
  names, texts, labels = [], [], []
  for described in _records(relations, ("relation", "label")):
    path = archive / "TREx" / f"{described['relation']}.jsonl"
    if not path.is_file():
      continue
    facts = list(_records(path, ("sub_label", "obj_label")))
    if not facts:
      raise ValueError(f"{path} holds no fact; unpack the archive again")
    rng = partition.generator("lama", len(names))
    size = min(len(facts), EXAMPLES_PER_RELATION)
    rows = np.sort(rng.choice(len(facts), size, replace=False))
    texts += [
      prompt(facts[row]["sub_label"], facts[row]["obj_label"]) for row in rows
    ]
    labels += [len(names)] * size
    names.append(described["label"])
  if len(names) != NUM_RELATIONS:
    raise ValueError(
      f"{relations} lists {len(names)} relations with a file in"
      f" {archive / 'TREx'}; there must be {NUM_RELATIONS}: unpack the archive"
      " again"
    )
  return table.of_classes(
    tokens.tokenize(texts, model_dir, LENGTH),
    np.array(labels, np.int32),
    tuple(names),
  )


def _records(
  path: pathlib.Path, keys: tuple[str, ...]
) -> Iterator[Mapping[str, Any]]:
  """Reads the objects of a file, one per line, with text fields.

  Args:
    path: The file.
    keys: The keys of the text fields.

  Yields:
    The objects.

  Raises:
    ValueError: If a line does not have such an object.
  """
  for line, record in text_files.json_objects(path):
    for key in keys:
      if not (isinstance(record.get(key), str) and record[key]):
        raise ValueError(
          f"{path}, line {line}: {key} must be a text, got"
          f" {record.get(key)!r}; unpack the archive again"
        )
    yield record
