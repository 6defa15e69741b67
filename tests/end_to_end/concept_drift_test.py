"""Concepts that differ between clients and times, in a whole run."""

import numpy as np
import pytest

from tff_shift.data.shifts import concepts

_SMALL = """
  --dataset=circle --num_domains=6 --max_examples_per_domain=40 --num_clients=4
  --rounds=1 --local_steps=1 --noprogress
"""


@pytest.mark.long
def test_settings_and_figure_show_the_concepts(run, drawn_figures):
  with drawn_figures("concepts"):
    ended = run(
      *("evolving", _SMALL, "--algorithm=fed_avg --concept_drift=staggered"),
      "--select=last_source --learning_rate=0.1,0.2 --bounds",
    )
  assert "pooled is not computed: with --concept_drift" in ended.errors
  names = [each["algorithm"] for each in ended.runs]
  assert names[:2] == ["fed_avg", "majority_class"]
  expected = {"concept_drift": "staggered", "relabeling": "reversed"}
  for each in ended.runs:
    assert (expected | {"num_concepts": 2}).items() <= each["setting"].items()
  assert (ended.folder / "figures" / "concepts.png").stat().st_size
  assert ended.config["flags"]["concept_drift"] == "staggered"


def test_plan_has_the_concepts_that_its_flags_determine(planned, tmp_path):
  flags = "--algorithm=fed_avg --concept_drift=groups --seeds=0,5"
  output = f"--output_dir={tmp_path / 'run'}"
  plan = planned("evolving", [_SMALL, flags, output])
  for seed in (0, 5):
    expected = concepts.draw(
      "groups", num_clients=4, num_domains=6, num_classes=2, seed=seed
    )
    for found, wanted in zip(plan.concepts[seed], expected, strict=True):
      np.testing.assert_array_equal(found, wanted)
