"""Final metrics over clients, and relative to a baseline of the same table."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from tff_shift.reporting import clients as clients_lib
from tff_shift.reporting import summary
from tff_shift.simulation.bounds import MAJORITY_CLASS

# The baselines by which other algorithms harm clients.
BASELINES = ("local", "fed_avg", "source")
# The algorithm that does not adapt.
NO_ADAPTATION = "source"
_ACCURACY = "accuracy"
_GAIN = "adaptation_gain"
# Names that do not end in `accuracy`: tables and pages show those that do.
_SPREAD = {
  "worst": "accuracy_of_worst_client",
  "percentile_10": "accuracy_percentile_10",
  "std": "accuracy_std_over_clients",
}


def over_clients(accuracy: np.ndarray) -> dict[str, float]:
  """Returns the metrics of the spread over clients.

  Args:
    accuracy: The final accuracy of each client, in percent.
  """
  found = clients_lib.spread_of(accuracy)
  return {name: found[key] for key, name in _SPREAD.items()}


def lower_is_better() -> tuple[str, ...]:
  """Returns those of the metrics here whose lower values are better."""
  return _SPREAD["std"], *map(_harmed, BASELINES)


def _harmed(baseline: str) -> str:
  return f"harmed_share_against_{baseline}"


def relative_to_baselines(
  runs: Sequence[summary.RunSummary],
  accuracies: Sequence[Mapping[int, np.ndarray | None]],
  varied: Sequence[str],
) -> list[summary.RunSummary]:
  """Adds the metrics that compare runs with baselines.

  These are `harmed_share_against_<baseline>`, see `clients.harmed_share`, and
  `adaptation_gain`, the accuracy minus that of the algorithm that does not
  adapt. Runs of a baseline with several settings are compared only if one of
  them was selected.

  Args:
    runs: The runs of a table.
    accuracies: For each run the final accuracy of each client, by seed. None:
      it is not known.
    varied: The settings that distinguish the data of runs.

  Returns:
    The runs, in the same order.
  """
  found = []
  for run, accuracy in zip(runs, accuracies, strict=True):
    added = {seed: {} for seed in run.metrics_by_seed}
    for name in BASELINES:
      place = _baseline(runs, run, name, varied)
      if place is None or run.algorithm == name:
        continue
      other, reference = runs[place], accuracies[place]
      if added.keys() != other.metrics_by_seed.keys():
        continue
      for seed, metrics in added.items():
        if _known(accuracy, reference, seed):
          metrics[_harmed(name)] = clients_lib.harmed_share(
            accuracy[seed], reference[seed]
          )
        both = run.metrics_by_seed[seed], other.metrics_by_seed[seed]
        is_gain = name == NO_ADAPTATION and run.algorithm != MAJORITY_CLASS
        if is_gain and all(_ACCURACY in each for each in both):
          metrics[_GAIN] = both[0][_ACCURACY] - both[1][_ACCURACY]
    found.append(
      dataclasses.replace(
        run,
        metrics_by_seed={
          seed: {**metrics, **added[seed]}
          for seed, metrics in run.metrics_by_seed.items()
        },
      )
    )
  return found


def _known(accuracy, reference, seed) -> bool:
  """Returns whether both accuracies are known, for the same clients."""
  both = accuracy.get(seed), reference.get(seed)
  return all(each is not None for each in both) and (
    both[0].shape == both[1].shape
  )


def _baseline(
  runs: Sequence[summary.RunSummary],
  run: summary.RunSummary,
  name: str,
  varied: Sequence[str],
) -> int | None:
  """Returns the place of a baseline's run on the same data, if it is one."""
  places = [
    place
    for place, each in enumerate(runs)
    if each.algorithm == name
    and each.dataset == run.dataset
    and all(each.setting.get(key) == run.setting.get(key) for key in varied)
  ]
  if len(places) > 1:
    places = [
      place
      for place in places
      if runs[place].setting.get("selection", "none") != "none"
    ]
  return places[0] if len(places) == 1 else None
