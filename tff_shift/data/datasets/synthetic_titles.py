"""Synthetic titles: generated titles of five classes whose words change.

The titles are rows of made-up words, for testing methods on text without an
archive. Domain m = 0..M - 1 has the position u = m / (M - 1).

There are three kinds of words.
  * A class has 32 topic words, k = 0..31. Word k comes into use and goes out of
    use: its frequency at u is proportional to exp(-((u - c_k) / 0.08)^2 / 2),
    with c_k from -0.2 to 1.2 in equal steps.
  * A class has 8 changing words: at u they occur in this class with probability
    1 - u, and in the next class (cyclically) with probability u.
  * 40 words are common to all classes, at any u.
A title has 4 to 10 words, with equal probabilities. Each word is drawn
independently: with probability 0.2 a topic word, with 0.15 a changing word,
otherwise a common word.

The target may therefore have new words, which no source domain has, or hardly
ever.

Choices:
  * The best classifier for the last domain is not the best for all others:
    naive Bayes, which counts words, has 78 % on the target from all source
    domains, 90 % from the last one, and 9 % from the first (seed 0).
"""

import numpy as np

from tff_shift.data import dataset
from tff_shift.data import partition
from tff_shift.data import table
from tff_shift.data.texts import text

TITLE_LENGTH = 10
CLASS_NAMES = tuple(f"synthetic class {label}" for label in range(5))

_SHORTEST = 4
_NUM_TOPIC_WORDS = 32
_FIRST_PEAK, _LAST_PEAK, _WIDTH = -0.2, 1.2, 0.08
_NUM_CHANGING_WORDS = 8
_NUM_COMMON_WORDS = 40
_TOPIC_SHARE, _CHANGING_SHARE = 0.2, 0.15

_TOPIC, _CHANGING, _COMMON = range(3)


def generate(
  seed: int, num_domains: int = 10, examples_per_class: int = 80
) -> table.Table:
  """Generates the titles of all domains.

  Args:
    seed: Seed of the draw; the titles of domain m depend on (seed, m) and on u
      only.
    num_domains: Number of domains M.
    examples_per_class: Number of titles of each class in each domain.

  Returns:
    `x` `[num_domains * 5 * examples_per_class, 10]` int32, domain by domain and
    in each class by class; `time` is the number of the domain, from 1.

  Raises:
    ValueError: If a number is below 1, or the seed below 0.
  """
  partition.check_positive_integer("num_domains", num_domains)
  partition.check_positive_integer("examples_per_class", examples_per_class)
  classes = range(len(CLASS_NAMES))
  titles = [
    title
    for domain, position in enumerate(np.linspace(0, 1, num_domains))
    for label in classes
    for title in _titles(
      label,
      position,
      examples_per_class,
      partition.generator("synthetic titles", [seed, domain, label]),
    )
  ]
  x, vocabulary = text.number(titles, TITLE_LENGTH)
  labels = np.repeat(np.array(classes, np.int32), examples_per_class)
  time = np.arange(1, num_domains + 1, dtype=np.int32)
  return table.of_classes(
    x,
    np.tile(labels, num_domains),
    CLASS_NAMES,
    time=np.repeat(time, len(labels)),
    vocabulary=vocabulary,
  )


def _titles(
  label: int, position: float, count: int, rng: np.random.Generator
) -> list[list[str]]:
  """Draws the words of titles of a class at a position u from 0 to 1."""
  peaks = np.linspace(_FIRST_PEAK, _LAST_PEAK, _NUM_TOPIC_WORDS)
  frequencies = np.exp(-np.square((position - peaks) / _WIDTH) / 2)
  probabilities = (
    _TOPIC_SHARE,
    _CHANGING_SHARE,
    1 - _TOPIC_SHARE - _CHANGING_SHARE,
  )

  def draw_word():
    kind = rng.choice(len(probabilities), p=probabilities)
    if kind == _TOPIC:
      word = rng.choice(_NUM_TOPIC_WORDS, p=frequencies / frequencies.sum())
      return f"topic{label}word{word}"
    if kind == _CHANGING:
      # A changing word of this class, or of the previous class if it has
      # changed.
      of = (label - (rng.random() < position)) % len(CLASS_NAMES)
      return f"changing{of}word{rng.integers(_NUM_CHANGING_WORDS)}"
    return f"common{rng.integers(_NUM_COMMON_WORDS)}"

  return [
    [draw_word() for _ in range(rng.integers(_SHORTEST, TITLE_LENGTH + 1))]
    for _ in range(count)
  ]


_NUM_WORDS = _NUM_COMMON_WORDS + len(CLASS_NAMES) * (
  _NUM_TOPIC_WORDS + _NUM_CHANGING_WORDS
)

DATASET = dataset.DatasetInfo(
  shape=(TITLE_LENGTH,),
  dtype=np.int32,
  num_classes=len(CLASS_NAMES),
  models={"evolving": "bi_lstm"},
  generate=generate,
  evolution=dataset.Evolution(num_domains=10, range_format="part {}"),
  vocabulary_size=_NUM_WORDS + len(text.RESERVED),
)
