"""Experiment tracking: flags of TensorBoard, MLflow and Weights & Biases."""

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from absl import flags

from tff_shift.command_line import configuration
from tff_shift.reporting import trackers
from tff_shift.simulation.storage import results

GROUP = "output"

FLAGS = flags.FLAGS

_NONE = "none"
_NAMES = ("tensorboard", "mlflow", "wandb", _NONE)
# The packages of trackers that are extras of the same name.
_EXTRAS = {"mlflow": "MLflow", "wandb": "Weights & Biases"}
# The timeout of a server in seconds.
_TIMEOUT = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  """The flags of trackers."""

  tracker: tuple[str, ...] = configuration.setting(
    ("tensorboard",),
    "Comma-separated trackers: tensorboard (event files in --output_dir),"
    " mlflow (runs with parameters, scalars and figures; needs the extra"
    " mlflow), wandb (the same for Weights & Biases, offline in --output_dir;"
    " needs the extra wandb); or none.",
    choices=_NAMES,
  )
  mlflow_uri: str | None = configuration.setting(
    None,
    "Folder or server address where MLflow stores runs. Default: mlruns in"
    " --output_dir.",
  )


def check() -> None:
  """Checks that the trackers exist and can be used.

  Raises:
    ValueError: If a flag is wrong.
  """
  names = FLAGS.tracker
  shown = f"--tracker={','.join(names)}"
  if _NONE in names and len(names) > 1:
    raise ValueError(f"{shown}: {_NONE} excludes all others")
  if "mlflow" not in names and FLAGS.mlflow_uri is not None:
    raise ValueError("--mlflow_uri needs --tracker=mlflow")
  for extra, called in _EXTRAS.items():
    if extra in names and importlib.util.find_spec(extra) is None:
      raise ValueError(
        f"{shown}: {called} is not installed; install the extra {extra}: pip"
        f" install 'tff_shift[{extra}]'"
      )
  if FLAGS.mlflow_uri is not None:
    _check_place(FLAGS.mlflow_uri)


def _check_place(uri: str) -> None:
  """Checks that a server answers, or that a folder is writable."""
  scheme = urllib.parse.urlsplit(uri).scheme
  if scheme in ("http", "https"):
    try:
      urllib.request.urlopen(uri, timeout=_TIMEOUT).close()
    except urllib.error.HTTPError:
      # It answered. MLflow itself knows what it needs, such as a password.
      pass
    except (OSError, ValueError) as error:
      reason = getattr(error, "reason", error)
      raise ValueError(f"--mlflow_uri={uri}: no answer ({reason})") from error
  elif scheme in ("", "file"):
    folder = pathlib.Path(
      urllib.request.url2pathname(uri.removeprefix("file:"))
    )
    existing = next(
      each for each in (folder, *folder.absolute().parents) if each.exists()
    )
    if not uri or not existing.is_dir() or not os.access(existing, os.W_OK):
      raise ValueError(
        f"--mlflow_uri={uri}: it must be a writable folder or the address of a"
        " server"
      )


@contextlib.contextmanager
def started(
  scenario: str,
  folder: results.RunFolder,
  name: str,
  parameters: Mapping[str, Any],
) -> Iterator[list[trackers.Tracker]]:
  """Starts a run with each tracker of the flags, after `check`.

  Args:
    scenario: The name of the binary.
    folder: The output folder.
    name: The unique name of the run; slashes group runs.
    parameters: The parameters of the run.

  Yields:
    The trackers; their runs end with the `with` block.

  Raises:
    files.WriteError: If a tracker cannot use its folder or server.
  """
  place = folder.path.absolute()
  run = name, parameters, (folder.identity, *folder.replaced)
  title = f"tff_shift {scenario}"
  makers: dict[str, Callable[[], trackers.Tracker]] = {
    "tensorboard": lambda: trackers.TensorBoard(place / "tensorboard", name),
    "mlflow": lambda: trackers.MLflow(
      FLAGS.mlflow_uri or (place / "mlruns").as_uri(), title, *run
    ),
    # wandb makes the folder wandb in it.
    "wandb": lambda: trackers.WandB(place, title, *run),
  }
  with contextlib.ExitStack() as stack:
    yield [
      stack.enter_context(makers[tracker]())
      for tracker in FLAGS.tracker
      if tracker != _NONE
    ]
