"""The files of a job.

<method>/           the run folder
<method>.log        the output of the binary, if `--jobs` started it
"""

import datetime
import pathlib
import shlex
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from experiments.papers import job as job_lib
from tff_shift.command_line import output_folder
from tff_shift.reporting import run_folders
from tff_shift.simulation.storage import results
from tff_shift.simulation.storage import run_records


class State(NamedTuple):
  """The state of a job.

  Attributes:
    arguments: The arguments of the binary.
    is_finished: Whether the run is complete.
    machine: The machine of the first start.
    ended: When the finished run ended, ISO format.
    seconds: Wall-clock seconds of a finished run, or None if unknown.
  """

  arguments: Sequence[str]
  is_finished: bool
  machine: str
  ended: str = ""
  seconds: float | None = None


def _determining(arguments: Iterable[str]) -> set[str]:
  """Returns the flags in a command line that determine results."""
  # absl accepts one dash as well; `-m` is an option of Python.
  texts = {
    argument.lstrip("-")
    for argument in arguments
    if argument.startswith("-") and argument != "-m"
  }
  return {
    f"--{text}"
    for text in texts
    if text.partition("=")[0] not in output_folder.WITHOUT_EFFECT
  }


class JobFolder:
  """The files of a job.

  Attributes:
    folder: The run folder.
    log: The file with the output of the binary.
  """

  def __init__(self, output_dir: pathlib.Path, job: job_lib.Job):
    self.folder = output_dir / job.folder
    self.log = self.folder.with_name(f"{self.folder.name}.log")
    self._wanted = _determining(job.arguments)

  def read(self) -> State | None:
    """Returns the state of the job, or None if there is no run.

    Raises:
      ValueError: If a file is damaged.
    """
    config = self.config()
    if config is None:
      return None
    command_line = config.command_line
    if config.resumed:
      command_line = config.resumed[-1].command_line
    done = results.RunFolder(self.folder).read_done()
    state = State(shlex.split(command_line), done is not None, config.machine)
    if done is None:
      return state
    ended = done.ended or config.start_time
    seconds = None
    if done.ended and not config.resumed:
      start, end = map(
        datetime.datetime.fromisoformat, (config.start_time, ended)
      )
      seconds = max(0.0, (end - start).total_seconds())
    return state._replace(ended=ended, seconds=seconds)

  def is_same(self, state: State) -> bool:
    """Returns whether a run has the flags of the job."""
    return _determining(state.arguments) == self._wanted

  def check_same(self) -> None:
    """Refuses a folder with a run of other flags.

    Raises:
      ValueError: If flags differ; names them.
    """
    state = self.read()
    if state is None or self.is_same(state):
      return
    before = _determining(state.arguments)
    changes = " ".join(sorted(before - self._wanted)) or "no additional flags"
    wanted = " ".join(sorted(self._wanted - before)) or "no additional flags"
    raise ValueError(
      f"{self.folder} contains another run: it has {changes}, the command has"
      f" {wanted}; name another --output_dir"
    )

  def is_finished(self) -> bool:
    """Returns whether the run is complete and has the flags of the job."""
    state = self.read()
    return state is not None and state.is_finished and self.is_same(state)

  def ended_before(self, path: pathlib.Path) -> bool:
    """Returns whether a file was written after the finished job ended."""
    ended = (self.folder / run_records.SUMMARY).stat().st_mtime_ns
    return ended <= path.stat().st_mtime_ns

  def last_line(self) -> str:
    """Returns the last line of the binary's output, or an empty string."""
    try:
      text = self.log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
      return ""
    return (text.strip().splitlines() or [""])[-1].strip()

  def summary(self) -> Sequence[run_records.Entry]:
    """Returns the entries of summary.json; empty if it does not exist."""
    return run_folders.read_entries(self.folder)

  def config(self) -> run_records.RunConfig | None:
    """Returns config.json, or None if it does not exist."""
    return run_folders.read_config(self.folder)
