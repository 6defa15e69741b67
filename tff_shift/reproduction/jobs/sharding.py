"""Jobs dealt to machines, and folders of machines joined."""

import pathlib
import re
import shutil
from collections.abc import Sequence

from tff_shift import files
from tff_shift.reproduction import plan_file
from tff_shift.reproduction.jobs import costs
from tff_shift.reproduction.jobs import jobs as jobs_lib
from tff_shift.reproduction.jobs import records


def parse(text: str) -> tuple[int, int]:
  """Reads `--shard`.

  Args:
    text: "i/n", the i-th of n, from 1.

  Returns:
    i and n.

  Raises:
    ValueError: If it is not of that form.
  """
  found = re.fullmatch(r"(\d+)/(\d+)", text)
  if not found or not 1 <= int(found[1]) <= int(found[2]):
    raise ValueError(f"--shard={text}: i/n wanted, from 1/n to n/n")
  return int(found[1]), int(found[2])


def deal(
  jobs: Sequence[jobs_lib.Job], index: int, number: int
) -> list[jobs_lib.Job]:
  """Returns the jobs of a machine: about as much work for each.

  The longest job goes first, each to the machine that has least so far. It
  depends on guessed costs alone, so that all machines deal alike.

  Args:
    jobs: All jobs.
    index: Which machine, from 1.
    number: How many there are.
  """
  shares = [[] for _ in range(number)]
  loads = [0.0] * number
  ordered = sorted(jobs, key=lambda job: (-costs.seconds(job), job.folder))
  for job in ordered:
    least = loads.index(min(loads))
    shares[least].append(job.folder)
    loads[least] += costs.seconds(job)
  mine = set(shares[index - 1])
  return [job for job in jobs if job.folder in mine]


def common_plan(folders: Sequence[pathlib.Path]) -> plan_file.Plan:
  """Returns the plan that folders of shards have in common.

  Raises:
    ValueError: If one has none, or another one.
  """
  plans = {}
  for folder in folders:
    plan = plan_file.read(folder)
    if plan is None:
      raise ValueError(f"--merge: {folder} holds no {plan_file.NAME}")
    plans[folder] = plan
  first = plans[folders[0]]
  for folder, plan in plans.items():
    if (plan.reduce, plan.more_flags) != (first.reduce, first.more_flags):
      raise ValueError(
        f"--merge: {folder} was run by another plan than {folders[0]}; see"
        f" {plan_file.NAME} in both"
      )
  return first


def merge(
  jobs: Sequence[jobs_lib.Job],
  folders: Sequence[pathlib.Path],
  output_dir: pathlib.Path,
) -> int:
  """Copies what folders of shards hold into one; what is there stays.

  A finished run goes before one that is not; of two finished ones, the first
  folder's is taken: they are equal but for their times.

  Args:
    jobs: The jobs of the table.
    folders: The folders of the shards.
    output_dir: The folder to copy to.

  Returns:
    How many run folders were copied.

  Raises:
    ValueError: If a folder holds a run with other flags, or is still run.
  """
  copied = 0
  for job in jobs:
    found = [records.JobFolder(folder, job) for folder in folders]
    for place in found:
      place.check_same()
    found = [place for place in found if place.read() is not None]
    found.sort(key=lambda place: not place.is_finished())
    target = records.JobFolder(output_dir, job)
    target.check_same()
    if not found or target.is_finished():
      continue
    if target.read() is not None and not found[0].is_finished():
      continue
    _copy(found[0], target)
    copied += 1
  return copied


def _copy(place: records.JobFolder, target: records.JobFolder) -> None:
  """Copies a run; the record last, for it says that the run is whole."""
  if not place.take():
    raise ValueError(f"--merge: {place.folder} is still run; wait for its end")
  try:
    files.make_folder(target.folder.parent)
    with files.replacing_folder(target.folder) as folder:
      shutil.copytree(place.folder, folder, dirs_exist_ok=True)
    if place.log.is_file():
      with open(place.log, "rb") as log, files.replacing(target.log) as copy:
        shutil.copyfileobj(log, copy)
    target.write(place.read())
  finally:
    place.give_back()
