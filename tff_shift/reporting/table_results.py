"""Tables of counts of a run, such as confusion matrices: files and figures."""

import json
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from tff_shift._util import files
from tff_shift.learning.metrics import reliability
from tff_shift.reporting.figures import drawing
from tff_shift.reporting.figures import evaluation_figures
from tff_shift.simulation.storage import results

_CONFUSION, _RELIABILITY = "confusion_matrix", "reliability"


def write(
  name: str,
  by_seed: Mapping[int, np.ndarray],
  class_names: Sequence[str],
  label: str,
  folder: results.RunFolder,
) -> None:
  """Writes a table of each seed, and draws those that have a figure.

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
  counts = np.sum(list(by_seed.values()), axis=0)
  title = f"{label}, {name.replace('_', ' ')}"
  if name.endswith(_CONFUSION):
    drawing.save(
      evaluation_figures.confusion_matrix(counts, class_names, title=title),
      path,
    )
  if name.endswith(_RELIABILITY) and reliability.bins(counts)[0].any():
    drawing.save(
      evaluation_figures.calibration_of_bins(
        reliability.bins(counts), title=title
      ),
      path,
    )
