"""Tracks parameters, scalars by step and files in MLflow.

MLflow is the extra `mlflow` of this package. Only its client is used, without
global state, so that programs can track runs of their own.
"""

import contextlib
import itertools
import os
import pathlib
import re
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tff_shift import files
from tff_shift.reporting.trackers import trackers

_IDENTITY = "tff_shift.identity"
_NAME = "tff_shift.name"
# Limits of one request.
_MOST_PARAMETERS = 100
_MOST_RUNS = 1000


def _import_mlflow():
  # MLflow 3 sends telemetry unless this is set before its import.
  os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
  # Imported here because it takes seconds and is optional.
  import mlflow

  return mlflow


@contextlib.contextmanager
def _writing(uri: str) -> Iterator[None]:
  """Converts exceptions of MLflow to `files.WriteError`."""
  mlflow = _import_mlflow()
  try:
    with files.writing(uri):
      yield
  except mlflow.MlflowException as error:
    raise files.WriteError(uri, " ".join(error.message.split())) from error


class MLflow:
  """Tracks runs in an experiment of MLflow.

  A run that is started again with the same identity and name is resumed. The
  first value of each step is kept, so that points are not duplicated.
  """

  def __init__(
    self,
    uri: str,
    experiment: str,
    identity: str,
    replaced: Sequence[str] = (),
  ):
    """Finds or creates the experiment.

    Args:
      uri: The tracking URI: a folder, `file:`, `http:` and so on.
      experiment: The name of the experiment.
      identity: Distinguishes these runs from others of the same names.
      replaced: Identities whose runs are deleted, for example of a run that had
        fewer rounds, because MLflow cannot delete single points.

    Raises:
      ModuleNotFoundError: If MLflow is not installed.
      files.WriteError: If MLflow cannot use the URI.
    """
    mlflow = _import_mlflow()
    self._uri = uri
    self._identity = identity
    with _writing(uri):
      self._client = mlflow.MlflowClient(tracking_uri=uri)
      found = self._client.get_experiment_by_name(experiment)
      self._experiment = (
        found.experiment_id
        if found
        else self._client.create_experiment(experiment)
      )
      for other in replaced:
        for run in list(self._find_runs(other)):
          self._client.delete_run(run.info.run_id)
      self._earlier = {
        run.data.tags[_NAME]: run for run in self._find_runs(identity)
      }

  def _find_runs(self, identity):
    """Yields the runs of an identity."""
    token = None
    while True:
      page = self._client.search_runs(
        [self._experiment],
        f"tags.`{_IDENTITY}` = '{identity}'",
        max_results=_MOST_RUNS,
        page_token=token,
      )
      yield from page
      token = page.token
      if not token:
        return

  def start(
    self, name: str, parameters: Mapping[str, Any]
  ) -> trackers.TrackedRun:
    """Starts or resumes a run.

    Args:
      name: The name of the run.
      parameters: Its parameters. Existing parameters are kept.

    Raises:
      files.WriteError: If MLflow cannot store them.
    """
    # MLflow has been imported by now.
    from mlflow import entities

    with _writing(self._uri):
      run = self._earlier.get(name)
      if run is None:
        run = self._earlier[name] = self._client.create_run(
          self._experiment,
          run_name=name,
          tags={_IDENTITY: self._identity, _NAME: name},
        )
      else:
        self._client.update_run(run.info.run_id, status="RUNNING")
      keys = _Keys()
      new = [
        entities.Param(keys.of(name), str(value))
        for name, value in parameters.items()
        if keys.of(name) not in run.data.params
      ]
      for first in range(0, len(new), _MOST_PARAMETERS):
        self._client.log_batch(
          run.info.run_id, params=new[first : first + _MOST_PARAMETERS]
        )
    return _MLflowRun(self._uri, self._client, run.info.run_id)


class _MLflowRun:
  """A run of `MLflow`."""

  def __init__(self, uri, client, run_id):
    self._uri = uri
    self._client = client
    self._run_id = run_id
    # The steps that MLflow already has, by scalar.
    self._steps = {}
    self._keys = _Keys()

  def scalars(self, values, step, group=""):
    from mlflow import entities

    now = round(1000 * time.time())
    metrics = []
    with _writing(self._uri):
      for name, value in values.items():
        key = self._keys.of(f"{group}/{name}" if group else name)
        known = self._known_steps(key)
        if step not in known:
          known.add(step)
          metrics.append(entities.Metric(key, float(value), now, int(step)))
      if metrics:
        self._client.log_batch(self._run_id, metrics=metrics)

  def _known_steps(self, key):
    if key not in self._steps:
      history = self._client.get_metric_history(self._run_id, key)
      self._steps[key] = {point.step for point in history}
    return self._steps[key]

  def artifact(self, path, folder=""):
    with _writing(self._uri):
      self._client.log_artifact(
        self._run_id, str(pathlib.Path(path)), folder or None
      )

  def end(self, is_done=True):
    with _writing(self._uri):
      self._client.set_terminated(
        self._run_id, "FINISHED" if is_done else "FAILED"
      )


class _Keys:
  """The names of MLflow: names that differ have keys that differ.

  MLflow allows ASCII letters, digits and few signs. A key that an earlier name
  has taken gets a number, so that a resumed run, which reports all names again
  in the same order, has the same keys.
  """

  def __init__(self):
    self._by_name: dict[str, str] = {}
    self._taken: set[str] = set()

  def of(self, name: str) -> str:
    """Returns the key of a name."""
    if name not in self._by_name:
      cleaned = re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)
      numbered = (f"{cleaned}_{number}" for number in itertools.count(2))
      key = next(
        each
        for each in itertools.chain([cleaned], numbered)
        # A file store may be on a file system without upper and lower case.
        if each.casefold() not in self._taken
      )
      self._taken.add(key.casefold())
      self._by_name[name] = key
    return self._by_name[name]
