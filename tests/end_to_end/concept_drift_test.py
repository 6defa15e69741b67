"""Concepts that differ between clients and times, in a whole run."""

import json
import re
import shlex

import numpy as np
import pytest

from tff_shift.binaries import evolving
from tff_shift.data.shifts import concepts

_SMALL = shlex.split("""
  --dataset=circle --num_domains=6 --max_examples_per_domain=40 --num_clients=4
  --rounds=1 --local_steps=1 --noprogress
""")


@pytest.mark.long
def test_settings_and_figure_show_the_concepts(
  run_here, read_runs, drawn_figures, tmp_path, capsys
):
  folder = tmp_path / "run"
  with drawn_figures("concepts"):
    code = run_here(
      evolving,
      [
        *(*_SMALL, "--algorithm=fed_avg", "--concept_drift=staggered"),
        *("--select=last_source", "--learning_rate=0.1,0.2", "--bounds"),
        f"--output_dir={folder}",
      ],
    )
  assert code == 0
  warned = capsys.readouterr().err
  assert "pooled is not computed: with --concept_drift" in warned
  names = [each["algorithm"] for each in read_runs(folder)]
  assert names == ["fed_avg", "majority_class"]
  for run in read_runs(folder):
    assert run["setting"]["concept_drift"] == "staggered"
    assert run["setting"]["relabeling"] == "reversed"
    assert run["setting"]["num_concepts"] == 2
  assert (folder / "figures" / "concepts.png").stat().st_size
  config = json.loads((folder / "config.json").read_text())
  assert config["flags"]["concept_drift"] == "staggered"


def test_plan_has_the_concepts_that_its_flags_determine(planned, tmp_path):
  plan = planned(
    evolving,
    [
      *(*_SMALL, "--algorithm=fed_avg", "--concept_drift=groups"),
      *("--seeds=0,5", f"--output_dir={tmp_path / 'run'}"),
    ],
  )
  for seed in (0, 5):
    expected = concepts.draw(
      "groups", num_clients=4, num_domains=6, num_classes=2, seed=seed
    )
    for found, wanted in zip(plan.concepts[seed], expected, strict=True):
      np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ("--relabeling=shifted", "--relabeling=shifted.* --concept_drift"),
    ("--num_concepts=2", "--num_concepts=2.* --concept_drift"),
    ("--concept_drift=sudden", "concept_drift.* groups.* staggered"),
    (
      "--concept_drift=groups --num_concepts=3",
      "num_concepts must be at most 2 with relabeling=reversed",
    ),
    (
      "--concept_drift=staggered --num_domains=3",
      "num_domains must be at least 4",
    ),
  ],
)
def test_what_makes_no_sense_is_refused(refused, flags, message):
  line = refused(evolving, [*_SMALL, "--algorithm=fed_avg", *flags.split()])
  assert re.search(message, line)
