"""Tables of counts of a run, such as confusion matrices: files and figures."""

import json
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from tff_shift import files
from tff_shift.reporting.figures import figures
from tff_shift.simulation.storage import results

_CONFUSION = "confusion_matrix"


def write(
  name: str,
  by_seed: Mapping[int, np.ndarray],
  class_names: Sequence[str],
  label: str,
  folder: results.RunFolder,
) -> None:
  """Writes a table of each seed, and draws a confusion matrix.

  The figure has the sum over the seeds.

  Args:
    name: The name of the table, such as `client_confusion_matrix`.
    by_seed: The counts by seed, [rows, columns].
    class_names: The names of the classes.
    label: The label of the trial.
    folder: The run's folder.
  """
  path = folder.figure_path(name, label)
  content = {
    "classes": list(class_names),
    "seeds": {str(seed): table.tolist() for seed, table in by_seed.items()},
  }
  files.write_atomically(
    path.with_suffix(".json"), json.dumps(content, ensure_ascii=False) + "\n"
  )
  if name.endswith(_CONFUSION):
    figures.confusion_matrix(
      np.sum(list(by_seed.values()), axis=0),
      class_names,
      path,
      title=f"{label}, {name.replace('_', ' ')}",
    )
