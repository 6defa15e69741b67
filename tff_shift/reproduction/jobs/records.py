"""The files of a job.

<method>/           the run folder, which also has the state of the job
<method>.log        the output of the binary, if `--jobs` started it
<method>.job.json   the state of the job, written by earlier versions
"""

import datetime
import hashlib
import pathlib
import shlex
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Annotated

import msgspec

from tff_shift import files
from tff_shift import records as records_lib
from tff_shift.command_line import output_folder
from tff_shift.reporting import run_folders
from tff_shift.reproduction.jobs import job as job_lib
from tff_shift.simulation.storage import results
from tff_shift.simulation.storage import run_records


class JobRecord(records_lib.Record):
  """The state of a job, the content of `<method>.job.json`.

  Attributes:
    arguments: The arguments of the binary.
    exit_code: The last exit code. None if the job has not ended.
    summary: SHA-256 of summary.json at that time.
    seconds: Wall-clock seconds, or None if unknown.
    ended: The time of the last end, ISO format.
    machine: The machine of the last start.
  """

  FORMAT = 1

  arguments: tuple[str, ...]
  exit_code: Annotated[int, msgspec.Meta(ge=-255, le=255)] | None = None
  summary: records_lib.Sha256 | None = None
  seconds: Annotated[float, msgspec.Meta(ge=0)] | None = 0.0
  ended: records_lib.TimeOrNone = ""
  machine: str = ""

  def __post_init__(self):
    if (self.exit_code is None) != (not self.ended):
      raise ValueError(
        f"exit_code is {self.exit_code}, and ended is {self.ended!r}: both or"
        " neither must be set"
      )


def _determining(arguments: Iterable[str]) -> set[str]:
  """Returns the flags in a command line that determine results."""
  # absl accepts one dash as well; `-m` is an option of Python.
  found = {
    each.lstrip("-")
    for each in arguments
    if each.startswith("-") and each != "-m"
  }
  return {
    f"--{each}"
    for each in found
    if each.partition("=")[0] not in output_folder.WITHOUT_EFFECT
  }


class JobFolder:
  """The files of a job.

  Attributes:
    folder: The run folder.
    log: The file with the output of the binary.
  """

  def __init__(self, output_dir: pathlib.Path, job: job_lib.Job):
    self.folder = output_dir / job.folder
    self.log = self._beside("log")
    self._wanted = _determining(job.arguments)

  def _beside(self, suffix: str) -> pathlib.Path:
    return self.folder.with_name(f"{self.folder.name}.{suffix}")

  def read(self) -> JobRecord | None:
    """Returns the state of the job, or None if there is no run.

    Raises:
      ValueError: If a file is damaged.
    """
    config, done = self.config(), results.RunFolder(self.folder).read_done()
    if done is None:
      try:
        return records_lib.read(
          self._beside("job.json"),
          JobRecord,
          f"remove it and {self.folder} to repeat the run",
        )
      except FileNotFoundError:
        pass
    if config is None:
      return None
    command_line = config.command_line
    if config.resumed:
      command_line = config.resumed[-1].command_line
    state = JobRecord(
      arguments=tuple(shlex.split(command_line)),
      seconds=None,
      machine=config.machine,
    )
    if done is None:
      return state
    if done.ended and not config.resumed:
      start, end = map(
        datetime.datetime.fromisoformat, (config.start_time, done.ended)
      )
      state = state.replace(seconds=max(0.0, (end - start).total_seconds()))
    return state.replace(
      exit_code=0,
      summary=self._digest(),
      ended=done.ended or config.start_time,
    )

  def is_same(self, record: JobRecord) -> bool:
    """Returns whether a run has the flags of the job."""
    return _determining(record.arguments) == self._wanted

  def check_same(self) -> None:
    """Refuses a folder with a run of other flags.

    Raises:
      ValueError: If flags differ; names them.
    """
    record = self.read()
    if record is None or self.is_same(record):
      return
    before = _determining(record.arguments)
    changes = " ".join(sorted(before - self._wanted)) or "no additional flags"
    wanted = " ".join(sorted(self._wanted - before)) or "no additional flags"
    raise ValueError(
      f"{self.folder} contains another run: it has {changes}, the command has"
      f" {wanted}; name another --output_dir"
    )

  def is_finished(self) -> bool:
    """Returns whether the run is complete and has the flags of the job."""
    record = self.read()
    return (
      record is not None
      and record.exit_code == 0
      and self.is_same(record)
      and record.summary == self._digest()
    )

  def ended_before(self, path: pathlib.Path) -> bool:
    """Returns whether a file was written after the finished job ended."""
    ended = (self.folder / run_records.SUMMARY).stat().st_mtime_ns
    return ended <= path.stat().st_mtime_ns

  def can_resume(self) -> bool:
    """Returns whether the run folder has a run to resume."""
    return results.RunFolder(self.folder).has_run()

  def _digest(self) -> str | None:
    """Returns the SHA-256 of summary.json, or None if it does not exist."""
    try:
      content = files.read_bytes(self.folder / run_records.SUMMARY)
    except FileNotFoundError:
      return None
    return hashlib.sha256(content).hexdigest()

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
