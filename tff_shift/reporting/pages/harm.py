"""What a mean over clients hides: badly served and harmed clients.

A client is harmed by a method if its value is worse than with a reference, such
as local training or FedAvg, with the same seed.
"""

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from tff_shift.reporting import clients as clients_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Harm:
  """The clients of a method that a reference serves better.

  Attributes:
    reference: The reference.
    difference: The mean over clients of the method minus the reference;
      positive if the method is better.
    share: The fraction of the harmed clients.
    loss: The mean of what harmed clients lose; 0 without harmed clients.
  """

  reference: str
  difference: float
  share: float
  loss: float

  @property
  def is_hidden(self) -> bool:
    """Whether the mean is better and clients are harmed."""
    return self.difference > 0 and self.share > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clients:
  """The values of a method's clients; all numbers are means over seeds.

  Attributes:
    row: The method.
    num_clients: The number of clients with a value, the smallest of all seeds.
    num_seeds: The number of seeds.
    mean: The mean over clients.
    low: The value that a tenth of the clients do not reach, by linear
      interpolation: the tenth percentile if higher is better, otherwise the
      ninetieth.
    worst: The value of the worst client.
    harms: The comparison with each reference that has common seeds.
  """

  row: str
  num_clients: int
  num_seeds: int
  mean: float
  low: float
  worst: float
  harms: Sequence[Harm]


def clients(
  by_method: Mapping[str, Mapping[int, Sequence[float]]],
  references: Sequence[str],
  *,
  higher_is_better: bool = True,
) -> list[Clients]:
  """Summarizes the values of single clients.

  Args:
    by_method: For each method and seed, the values of the clients. With the
      same seed, all methods have the same clients in the same order. NaN: the
      client has no value.
    references: The methods against which a client can be harmed; others and
      the method itself are ignored.
    higher_is_better: Whether higher values are better.

  Returns:
    The methods that have a client with a value with each seed, in order.
  """
  sign = 1 if higher_is_better else -1
  # Better is higher from here on.
  values = {
    row: {
      seed: sign * np.asarray(each, np.float64) for seed, each in seeds.items()
    }
    for row, seeds in by_method.items()
  }
  found = []
  for row, by_seed in values.items():
    if not by_seed or any(np.isnan(v).all() for v in by_seed.values()):
      continue
    spread = [clients_lib.spread_of(v) for v in by_seed.values()]
    found.append(
      Clients(
        row=row,
        num_clients=min(int((~np.isnan(v)).sum()) for v in by_seed.values()),
        num_seeds=len(by_seed),
        mean=sign * _mean(map(np.nanmean, by_seed.values())),
        low=sign * _mean(each["percentile_10"] for each in spread),
        worst=sign * _mean(each["worst"] for each in spread),
        harms=[
          harm
          for reference in references
          if reference != row and reference in values
          for harm in _harms(by_seed, reference, values[reference])
        ],
      )
    )
  return found


def _mean(values: Iterable[float]) -> float:
  return float(np.mean(list(values)))


def _harms(by_seed, reference, of_reference):
  """Yields the comparison with a reference, if they have common clients."""
  gains, shares, lost = [], [], []
  for seed in sorted(by_seed.keys() & of_reference.keys()):
    own, other = by_seed[seed], of_reference[seed]
    gain = own - other
    if np.isnan(gain).all():
      continue
    gains.append(np.nanmean(gain))
    shares.append(clients_lib.harmed_share(own, other) / 100)
    lost.extend(-gain[clients_lib.is_harmed(own, other)])
  if gains:
    yield Harm(
      reference=reference,
      difference=_mean(gains),
      share=_mean(shares),
      loss=_mean(lost) if lost else 0.0,
    )
