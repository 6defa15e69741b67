"""What is known of a job on the disk, beside its run folder.

<method>/           the run folder
<method>.job.json   with which flags it was started, whether it is finished
<method>.log        what the binary has printed
<method>.lock       held by the process that runs it
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
from tff_shift.reproduction.jobs import jobs as jobs_lib
from tff_shift.simulation.storage import run_records


class JobRecord(records_lib.Record):
  """What is known of a job: `<method>.job.json`.

  Attributes:
    arguments: With which it was started, see `Job.arguments`.
    exit_code: With which the binary ended last; None: it has not, or it was
      killed with everything else.
    summary: SHA-256 of its summary.json at that end.
    seconds: Wall-clock seconds of all its starts that ended.
    ended: When it ended last, as ISO text.
    machine: Where it ran last.
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
        " neither say that it has ended"
      )


class JobFolder:
  """Where a job's files are.

  Attributes:
    folder: The run folder.
    log: What the binary has printed.
  """

  def __init__(self, output_dir: pathlib.Path, job: jobs_lib.Job):
    self.folder = output_dir / job.folder
    self.log = self._beside("log")
    self._job = job
    self._lock = None

  def _beside(self, suffix: str) -> pathlib.Path:
    return self.folder.with_name(f"{self.folder.name}.{suffix}")

  def read(self) -> JobRecord | None:
    """Returns the record; None if the job was never started.

    Raises:
      ValueError: If the file is not what `write` has written.
    """
    try:
      return records_lib.read(
        self._beside("job.json"),
        JobRecord,
        f"remove it and {self.folder}, which is then run anew",
      )
    except FileNotFoundError:
      return None

  def write(self, record: JobRecord) -> None:
    """Replaces the record in one step."""
    records_lib.write(self._beside("job.json"), record)

  def check_same(self) -> None:
    """Refuses a folder that holds a run with other flags.

    Raises:
      ValueError: In one line, with the flags that differ.
    """
    record = self.read()
    if record is None or list(record.arguments) == self._job.arguments:
      return
    before, now = set(record.arguments), set(self._job.arguments)
    changes = " ".join(sorted(before - now)) or "without more flags"
    wanted = " ".join(sorted(now - before)) or "without these"
    raise ValueError(
      f"{self.folder} holds another run: it has {changes}, asked for is"
      f" {wanted}; name another --output_dir"
    )

  def is_finished(self) -> bool:
    """Whether the run folder is whole, and made with the job's flags."""
    record = self.read()
    return (
      record is not None
      and record.exit_code == 0
      and list(record.arguments) == self._job.arguments
      and record.summary == self.digest()
    )

  def ended_before(self, path: pathlib.Path) -> bool:
    """Whether a file was written since the job, which is finished, ended."""
    ended = self._beside("job.json").stat().st_mtime_ns
    return ended <= path.stat().st_mtime_ns

  def can_resume(self) -> bool:
    """Whether there is a run that a binary can go on with."""
    return (self.folder / "metrics.csv").is_file()

  def digest(self) -> str | None:
    """Returns the SHA-256 of summary.json; None if there is none."""
    try:
      content = files.read_bytes(self.folder / run_records.SUMMARY)
    except FileNotFoundError:
      return None
    return hashlib.sha256(content).hexdigest()

  def take(self) -> bool:
    """Takes the job for this process; False if another process has it."""
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
    """Lets other processes have the job."""
    os.close(self._lock)
    self._lock = None

  def last_line(self) -> str:
    """Returns the last line that the binary has printed, or nothing."""
    try:
      text = self.log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
      return ""
    return (text.strip().splitlines() or [""])[-1].strip()

  def summary(self) -> Sequence[run_records.Entry]:
    """Returns the entries of summary.json; none if there is none yet."""
    return run_folders.read_entries(self.folder)

  def config(self) -> run_records.RunConfig | None:
    """Returns config.json; None if there is none yet."""
    return run_folders.read_config(self.folder)


def machine() -> str:
  """Returns what this machine is, in words."""
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
  """Returns the time as ISO text."""
  return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
