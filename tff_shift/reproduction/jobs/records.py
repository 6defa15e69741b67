"""The files of a job.

<method>/           the run folder
<method>.job.json   the flags of the job and its state
<method>.log        the output of the binary
<method>.lock       locked by the process that runs the job
"""

import datetime
import fcntl
import glob
import hashlib
import os
import pathlib
import platform
from collections.abc import Sequence
from typing import Annotated
from typing import ClassVar

import msgspec

from tff_shift import files
from tff_shift import records as records_lib
from tff_shift.reporting import run_folders
from tff_shift.reproduction.jobs import job as job_lib
from tff_shift.simulation.storage import run_records


class JobRecord(records_lib.Record):
  """The state of a job, the content of `<method>.job.json`.

  Attributes:
    arguments: The arguments of the binary, see `Job.arguments`.
    exit_code: The last exit code. None if the job is running, or if it was
      killed together with its parent.
    summary: SHA-256 of summary.json at that time.
    seconds: Total wall-clock seconds of all ended starts.
    ended: The time of the last end, ISO format.
    machine: The machine of the last start.
  """

  FORMAT = 1
  # Files without a format have the same fields.
  UPGRADES: ClassVar = {0: dict}

  arguments: tuple[str, ...]
  exit_code: Annotated[int, msgspec.Meta(ge=-255, le=255)] | None = None
  summary: records_lib.Sha256 | None = None
  seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
  ended: records_lib.TimeOrNone = ""
  machine: str = ""

  def __post_init__(self):
    if (self.exit_code is None) != (not self.ended):
      raise ValueError(
        f"exit_code is {self.exit_code}, and ended is {self.ended!r}: both or"
        " neither must be set"
      )


class JobFolder:
  """The files of a job.

  Attributes:
    folder: The run folder.
    log: The file with the output of the binary.
  """

  def __init__(self, output_dir: pathlib.Path, job: job_lib.Job):
    self.folder = output_dir / job.folder
    self.log = self._beside("log")
    self._job = job
    self._lock = None

  def _beside(self, suffix: str) -> pathlib.Path:
    return self.folder.with_name(f"{self.folder.name}.{suffix}")

  def read(self) -> JobRecord | None:
    """Returns the record, or None if the job was never started.

    Raises:
      ValueError: If the file was changed since `write`.
    """
    try:
      return records_lib.read(
        self._beside("job.json"),
        JobRecord,
        f"remove it and {self.folder} to repeat the run",
      )
    except FileNotFoundError:
      return None

  def write(self, record: JobRecord) -> None:
    """Replaces the record atomically."""
    records_lib.write(self._beside("job.json"), record)

  def check_same(self) -> None:
    """Refuses a folder with a run of other flags.

    Raises:
      ValueError: If flags differ; names them.
    """
    record = self.read()
    if record is None or list(record.arguments) == self._job.arguments:
      return
    before, now = set(record.arguments), set(self._job.arguments)
    changes = " ".join(sorted(before - now)) or "no additional flags"
    wanted = " ".join(sorted(now - before)) or "no additional flags"
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
      and list(record.arguments) == self._job.arguments
      and record.summary == self.digest()
    )

  def ended_before(self, path: pathlib.Path) -> bool:
    """Returns whether a file was written after the finished job ended."""
    ended = self._beside("job.json").stat().st_mtime_ns
    return ended <= path.stat().st_mtime_ns

  def can_resume(self) -> bool:
    """Returns whether the run folder has a run to resume."""
    return (self.folder / "metrics.csv").is_file()

  def digest(self) -> str | None:
    """Returns the SHA-256 of summary.json, or None if it does not exist."""
    try:
      content = files.read_bytes(self.folder / run_records.SUMMARY)
    except FileNotFoundError:
      return None
    return hashlib.sha256(content).hexdigest()

  def take(self) -> bool:
    """Locks the job; returns False if another process has locked it."""
    files.make_folder(self.folder.parent)
    lock = files.open_to_append(self._beside("lock"))
    try:
      fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      os.close(lock)
      return False
    self._lock = lock
    return True

  def give_back(self) -> None:
    """Unlocks the job."""
    os.close(self._lock)
    self._lock = None

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


def machine() -> str:
  """Describes this machine: cores, memory and GPUs."""
  gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
  gpus = []
  for path in glob.glob("/proc/driver/nvidia/gpus/*/information"):
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    gpus += [
      each.partition(":")[2].strip() for each in lines if "Model" in each
    ]
  return (
    f"{len(os.sched_getaffinity(0))} cores ({platform.machine()}),"
    f" {gigabytes:.0f} GiB, {', '.join(gpus) or 'no GPU'}"
  )


def now() -> str:
  """Returns the current UTC time in ISO format."""
  return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
