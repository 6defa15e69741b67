"""Methods whose values lie in one run folder: Fed-ADE's controls."""

import csv
import sys

import pytest

from experiments.papers import collect
from experiments.papers import job as job_lib
from experiments.papers import job_folder
from experiments.papers import reductions
from experiments.papers import specification
from tff_shift.reporting import summary
from tff_shift.simulation.storage import results

_NAMES = ("fed_ade", "fix_lr_mean", "fed_ade_shuffled")


@pytest.fixture
def planned(tmp_path):
  """The cells of the controls and of Fed-ADE under linear shift."""
  (tmp_path / "data" / "cifar10").mkdir(parents=True)
  cells = job_lib.plan(
    specification.load("fed_ade/1"),
    reductions.Reductions({"num_seeds": "2"}),
    data_dir=str(tmp_path / "data"),
  )
  return {
    each.wanted.method: each
    for each in cells
    if each.wanted.method in _NAMES
    and each.wanted.dataset == "cifar10"
    and dict(each.wanted.setting)["shift"] == "linear"
  }


def test_controls_share_a_job_that_the_method_does_not_have(planned):
  own, mean, shuffled = (planned[name].job for name in _NAMES)
  assert mean is shuffled
  assert mean.folder == own.folder.replace("/fed_ade", "/fix_lr_mean")
  assert dict(mean.flags) == {**own.flags, "controls": True}
  assert "--controls" in mean.arguments


def test_each_reads_its_own_entry_and_rows(planned, tmp_path, monkeypatch):
  job = planned["fix_lr_mean"].job
  place = job_folder.JobFolder(tmp_path, job)
  place.folder.mkdir(parents=True)
  monkeypatch.setattr(sys, "orig_argv", ["python", *job.arguments])
  results.RunFolder(place.folder).write_config({})
  results.RunFolder(place.folder).write_summary(
    [
      summary.RunSummary(
        algorithm=name,
        dataset="cifar10",
        setting={"shift": "linear", "selection": "none"},
        metrics_by_seed={
          seed: {"accuracy": 10.0 * number + 2 * seed} for seed in (0, 1)
        },
        rounds=1,
        seconds_per_round=1.0,
      ).to_record()
      for number, name in enumerate(_NAMES)
    ]
  )
  with open(place.folder / "metrics.csv", "w", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(["algorithm", "seed", "timestep", "accuracy"])
    for number, name in enumerate(_NAMES):
      writer.writerows([name, 0, step, number + step] for step in (1, 2))
  found = collect.JobResult(job, tmp_path)
  for number, name in enumerate(_NAMES[1:], 1):
    entry = found.entry(planned[name].entry)
    values = found.by_seed(entry, "accuracy")
    assert values == {0: 10.0 * number, 1: 10.0 * number + 2}
    assert list(found.curves(entry, "accuracy")) == [
      (0, "timestep", [(1, number + 1), (2, number + 2)])
    ]


def test_job_of_another_method_has_to_have_a_folder(tmp_path):
  path = tmp_path / "wrong.toml"
  path.write_text(
    """
    name = "demo/wrong"
    title = "wrong"
    binary = "evolving"
    [datasets.circle]
    [metrics.accuracy]
    reads = "client_accuracy"
    [methods]
    fed_avg = { algorithm = "fed_avg" }
    shadow = { job = "fed_prox" }
    [ours]
    datasets = ["circle"]
    methods = ["shadow"]
    metrics = ["accuracy"]
    """
  )
  with pytest.raises(
    specification.SpecificationError, match=r"shadow\.job: 'fed_prox' has no"
  ):
    specification.load(str(path))
