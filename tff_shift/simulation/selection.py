"""Fair choice of a hyper-parameter: the same rule and budget for every method.

Every algorithm is tried at every value; the value with the best score counts.
The score comes from a run that holds something else out than what is finally
judged, for example the last source domain: the target is never looked at. The
reading at each common value stands beside the reading after the choice.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

# What a run holds out, and so what it is judged on.
TARGET = "target"
NONE = "none"


class Reading(NamedTuple):
  """The runs of an algorithm at one learning rate.

  Attributes:
    algorithm: The name of the algorithm.
    learning_rate: The learning rate.
    selection: The rule that chose this rate; `none` if no rule did.
    by_seed: What each run gave, by seed.
  """

  algorithm: str
  learning_rate: float
  selection: str
  by_seed: Mapping[int, Any]


def choose(scores: Mapping[float, float]) -> float:
  """Returns the value with the highest score, the smaller one of equals.

  Args:
    scores: A score, not NaN, for each value.

  Returns:
    One of the values.
  """
  return max(sorted(scores), key=scores.__getitem__)


def compare(
  rates: Mapping[str, Sequence[float]],
  run: Callable[[str, float, str], Mapping[int, Any]],
  *,
  select: str = NONE,
  score: Callable[[Mapping[int, Any]], float] | None = None,
  all_rates: bool = False,
  on_choice: Callable[[str, Mapping[float, float], float], None] = (
    lambda algorithm, scores, chosen: None
  ),
) -> Iterator[Reading]:
  """Runs algorithms at their learning rates, chosen fairly if asked to.

  Args:
    rates: The learning rates of each algorithm.
    run: `(algorithm, rate, held_out) -> results by seed`; held_out is `target`
      or the rule's name.
    select: `none` runs every rate; else the name of the rule, which is what its
      runs hold out.
    score: Turns a rule's runs into a number, more is better.
    all_rates: Whether the rates that the rule did not choose are run as well.
    on_choice: Called with an algorithm, its scores and the chosen rate.

  Yields:
    A reading for each run rate, as soon as it is there.
  """
  for algorithm, values in rates.items():
    chosen = None
    if select != NONE:
      scores = {rate: score(run(algorithm, rate, select)) for rate in values}
      chosen = choose(scores)
      on_choice(algorithm, scores, chosen)
    for rate in values:
      if chosen is None or rate == chosen or all_rates:
        selection = select if rate == chosen else NONE
        by_seed = run(algorithm, rate, TARGET)
        yield Reading(algorithm, rate, selection, by_seed)
