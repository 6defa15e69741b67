"""Runs the commands of jobs in parallel processes."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import joblib
import tqdm

from experiments.papers import child
from experiments.papers import job as job_lib
from experiments.papers import job_folder
from tff_shift._util import files
from tff_shift._util import shown_names
from tff_shift.reporting.pages import shown

# The time for a binary to end after each signal.
_GRACE_SECONDS = {signal.SIGINT: 30.0, signal.SIGTERM: 10.0, signal.SIGKILL: 10}


def run(
  jobs: Sequence[job_lib.Job],
  commands: Sequence[Sequence[str]],
  output_dir: pathlib.Path,
  num_processes: int,
) -> dict[str, str]:
  """Runs the commands of unfinished jobs, in order.

  Args:
    jobs: The jobs.
    commands: The command of each job, see `job.resuming_command`.
    output_dir: The folder of the reproduction.
    num_processes: The number of parallel processes.

  Returns:
    What went wrong, by the folder of the failed job.

  Raises:
    KeyboardInterrupt: After Ctrl-C, once all processes have ended.
  """
  waiting, processes, failures = [], [], {}
  for job, command in zip(jobs, commands, strict=True):
    if job_folder.JobFolder(output_dir, job).is_finished():
      _say("done before", job.folder)
    else:
      waiting.append((job, command))
  ended = joblib.Parallel(
    num_processes,
    backend="threading",
    batch_size=1,
    pre_dispatch="n_jobs",
    return_as="generator_unordered",
  )(
    joblib.delayed(_run_job)(job, command, output_dir, processes)
    for job, command in waiting
  )
  bar = tqdm.tqdm(ended, total=len(waiting), unit="job", disable=None)
  try:
    for job, seconds, line in bar:
      if line:
        failures[job.folder] = line
        _say("FAILED", f"{job.folder}: {line}")
      else:
        _say("done", f"{job.folder} in {shown.duration(seconds)}")
  finally:
    bar.close()
    _end_all(processes)
  return failures


def _run_job(
  job: job_lib.Job,
  command: Sequence[str],
  output_dir: pathlib.Path,
  processes: list[subprocess.Popen],
) -> tuple[job_lib.Job, float, str]:
  """Runs a job; returns it, its seconds, and what went wrong or ""."""
  folder = job_folder.JobFolder(output_dir, job)
  start = time.monotonic()
  _say("starts", job.folder)
  process = _start(command, folder.log)
  processes.append(process)
  code = process.wait()
  line = ""
  if code < 0:
    line = f"ended by {signal.Signals(-code).name}: {folder.last_line()}"
  elif code or not folder.is_finished():
    line = f"exit code {code}: {folder.last_line()}"
  return job, time.monotonic() - start, line


def _say(word: str, text: str) -> None:
  """Prints a line above the progress bar."""
  tqdm.tqdm.write(shown_names.printable(f"{word:<12} {text}"))
  sys.stdout.flush()


def _start(command: Sequence[str], log: pathlib.Path) -> subprocess.Popen:
  files.make_folder(log.parent)
  with files.writing(log), open(log, "ab") as output:
    return subprocess.Popen(
      [
        *(sys.executable, os.fspath(pathlib.Path(child.__file__))),
        *(str(os.getpid()), *command),
      ],
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=subprocess.STDOUT,
      # Only this process receives Ctrl-C; it passes the signal on.
      process_group=0,
    )


def _end_all(processes: Sequence[subprocess.Popen]) -> None:
  """Ends processes, gently first; keeps their checkpoints.

  Another Ctrl-C sends the next signal at once.
  """
  for kind, grace in _GRACE_SECONDS.items():
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
      process.send_signal(kind)
    end = time.monotonic() + grace
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
      for process in alive:
        process.wait(max(0.0, end - time.monotonic()))
