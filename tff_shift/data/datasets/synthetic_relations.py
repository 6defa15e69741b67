"""Synthetic relations: generated facts about invented names, as many as LAMA.

No fact is real, and results do not predict results on LAMA. There are 9 kinds
of things with 16 invented names each. A relation is a pair of kinds, of its
subject and its object; 41 of the 81 pairs are relations, with 100 examples
each. An example has a random name of either kind, preceded in half of the cases
by one of 8 meaningless words. Neither name alone determines the relation.

Like LAMA's, the texts are tokenized for the given model;
`python -m examples.tiny_llama` writes a model of random weights with a
tokenizer of these words.
"""

import pathlib

import numpy as np

from tff_shift.data import dataset
from tff_shift.data import partition
from tff_shift.data import table
from tff_shift.data.readers import lama_archive
from tff_shift.data.texts import tokens

_NUM_KINDS = 9
_NAMES_PER_KIND = 16
_NUM_FILLERS = 8
_LENGTH = 8
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def _invent(index: int) -> str:
  """Returns the word with a number: two syllables, the same in all runs."""
  syllables = [c + v for c in _CONSONANTS for v in _VOWELS]
  size = len(syllables)
  # A step without a common divisor: neighbours look different.
  code = index * 7919 % size**2
  return f"{syllables[code // size]}{syllables[code % size]}"


def words() -> tuple[str, ...]:
  """Returns all words of the texts, including the comma."""
  num_words = _NUM_KINDS * _NAMES_PER_KIND + _NUM_FILLERS
  return (",", *map(_invent, range(num_words)))


def sentences() -> tuple[list[str], np.ndarray, tuple[str, ...]]:
  """Generates the texts.

  Returns:
    The texts, their relations [n] int32, and the name of each relation.
  """
  invented = words()[1:]
  names = np.reshape(invented[:-_NUM_FILLERS], (_NUM_KINDS, _NAMES_PER_KIND))
  fillers = invented[-_NUM_FILLERS:]
  rng = partition.generator("synthetic relations", 0)
  pairs = np.sort(
    rng.choice(_NUM_KINDS**2, lama_archive.NUM_RELATIONS, replace=False)
  )

  def draw(kind):
    before = f"{rng.choice(fillers)} " if rng.random() < 0.5 else ""
    return before + rng.choice(names[kind])

  kinds = [divmod(int(pair), _NUM_KINDS) for pair in pairs]
  texts = [
    lama_archive.prompt(draw(of_subject), draw(of_object))
    for of_subject, of_object in kinds
    for _ in range(lama_archive.EXAMPLES_PER_RELATION)
  ]
  labels = np.repeat(
    np.arange(len(kinds), dtype=np.int32), lama_archive.EXAMPLES_PER_RELATION
  )
  relations = tuple(f"{subject} to {target}" for subject, target in kinds)
  return texts, labels, relations


def _load(folder: pathlib.Path, model_dir: pathlib.Path) -> table.Table:
  del folder  # They are generated.
  texts, labels, names = sentences()
  return table.of_classes(
    tokens.tokenize(texts, model_dir, _LENGTH), labels, names
  )


DATASET = dataset.DatasetInfo(
  shape=(_LENGTH,),
  dtype=np.int32,
  num_classes=lama_archive.NUM_RELATIONS,
  models={"online_adaptation": "llama"},
  tokenize=_load,
)
