"""Distributes jobs to machines, and merges the folders of machines."""

import pathlib
import re
import shutil
from collections.abc import Sequence

from tff_shift import files
from tff_shift.reproduction import plan_file
from tff_shift.reproduction.jobs import costs
from tff_shift.reproduction.jobs import job as job_lib
from tff_shift.reproduction.jobs import records


def parse(text: str) -> tuple[int, int]:
  """Parses `--shard`.

  Args:
    text: "i/n", the i-th of n, starting at 1.

  Returns:
    i and n.

  Raises:
    ValueError: If the text has another format.
  """
  found = re.fullmatch(r"(\d+)/(\d+)", text)
  if not found or not 1 <= int(found[1]) <= int(found[2]):
    raise ValueError(f"--shard={text}: it must be i/n, from 1/n to n/n")
  return int(found[1]), int(found[2])


def deal(
  jobs: Sequence[job_lib.Job], index: int, number: int
) -> list[job_lib.Job]:
  """Returns the jobs of a machine; balances the load between machines.

  Assigns jobs in order of decreasing cost to the machine with the least load.
  Only uses guessed costs, so that all machines compute the same assignment.

  Args:
    jobs: All jobs.
    index: The number of the machine, starting at 1.
    number: The number of machines.
  """
  assigned = [[] for _ in range(number)]
  loads = [0.0] * number
  ordered = sorted(jobs, key=lambda job: (-costs.seconds(job), job.folder))
  for job in ordered:
    least = loads.index(min(loads))
    assigned[least].append(job.folder)
    loads[least] += costs.seconds(job)
  mine = set(assigned[index - 1])
  return [job for job in jobs if job.folder in mine]


def common_plan(folders: Sequence[pathlib.Path]) -> plan_file.Plan:
  """Returns the common plan of the folders of shards.

  Raises:
    ValueError: If a folder has no plan, or plans differ.
  """
  plans = {}
  for folder in folders:
    plan = plan_file.read(folder)
    if plan is None:
      raise ValueError(f"--merge: {folder} has no {plan_file.NAME}")
    plans[folder] = plan
  first = plans[folders[0]]
  for folder, plan in plans.items():
    if (plan.reduce, plan.more_flags) != (first.reduce, first.more_flags):
      raise ValueError(
        f"--merge: {folder} has another plan than {folders[0]}; compare their"
        f" {plan_file.NAME}"
      )
  return first


def merge(
  jobs: Sequence[job_lib.Job],
  folders: Sequence[pathlib.Path],
  output_dir: pathlib.Path,
) -> int:
  """Copies the runs of shards into one folder; keeps the runs there.

  Finished runs have precedence over unfinished ones. Of two finished runs, the
  first folder's is copied; they only differ in their times.

  Args:
    jobs: The jobs of the table.
    folders: The folders of the shards.
    output_dir: The folder to copy to.

  Returns:
    The number of copied run folders.

  Raises:
    ValueError: If a folder has a run with other flags, or a job is running.
  """
  copied = 0
  for job in jobs:
    found = [records.JobFolder(folder, job) for folder in folders]
    for source in found:
      source.check_same()
    found = [source for source in found if source.read() is not None]
    found.sort(key=lambda source: not source.is_finished())
    target = records.JobFolder(output_dir, job)
    target.check_same()
    if not found or target.is_finished():
      continue
    if target.read() is not None and not found[0].is_finished():
      continue
    _copy(found[0], target)
    copied += 1
  return copied


def _copy(source: records.JobFolder, target: records.JobFolder) -> None:
  """Copies a run; its record last, because it marks the run as complete."""
  if not source.take():
    raise ValueError(f"--merge: {source.folder} is still running; wait for it")
  try:
    files.make_folder(target.folder.parent)
    with files.replacing_folder(target.folder) as folder:
      shutil.copytree(source.folder, folder, dirs_exist_ok=True)
    if source.log.is_file():
      with open(source.log, "rb") as log, files.replacing(target.log) as copy:
        shutil.copyfileobj(log, copy)
    target.write(source.read())
  finally:
    source.give_back()
