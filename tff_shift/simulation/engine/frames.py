"""Results as pandas' data frames."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  import pandas as pd

  from tff_shift.simulation.storage import client_values

# The columns of clients: the position, and the name if it is known.
CLIENT = "client"
CLIENT_NAME = "client_name"


def of_rows(
  rows: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> pd.DataFrame:
  """Returns a row per evaluation, with the columns of `metrics.csv`.

  Args:
    rows: The columns that identify the row, and its values; None: no value.
  """
  # Not at the top: a run does not need it.
  import pandas as pd

  frame = pd.DataFrame([{**place, **values} for place, values in rows])
  # A column of None only would have no numbers.
  empty = [name for name in frame if frame[name].isna().all()]
  return frame.astype(dict.fromkeys(empty, np.float64))


def of_clients(
  values: Iterable[client_values.ClientValues | None],
  names: Sequence[str] | None = None,
) -> pd.DataFrame:
  """Returns a row per evaluation and client that has a value.

  Args:
    values: The values of each evaluation. None: there are none.
    names: The names of the clients. None: unknown.

  Returns:
    The columns that identify the evaluation, `client` (the position),
    `client_name` if names are known, and the metrics, float32.
  """
  import pandas as pd

  frames, columns = [], {}
  for each in values:
    for row, place in enumerate(each.places if each is not None else ()):
      metrics = {name: own[row] for name, own in each.items()}
      columns |= dict.fromkeys(place) | dict.fromkeys(metrics)
      if not metrics:
        continue
      has_any = ~np.all(np.isnan(list(metrics.values())), axis=0)
      clients = np.flatnonzero(has_any).tolist()
      known: dict[str, Any] = {CLIENT: clients}
      if names is not None:
        known[CLIENT_NAME] = [names[client] for client in clients]
      frames.append(
        pd.DataFrame(
          {
            **place,
            **known,
            **{name: own[clients] for name, own in metrics.items()},
          }
        )
      )
  if not frames:
    return pd.DataFrame(columns=[CLIENT])
  return pd.concat(frames, ignore_index=True)
