"""Table 11 of the FedEvolve paper, computed from its Table 1."""

import pytest

from experiments.papers import computed
from experiments.papers import job as job_lib
from experiments.papers import reductions
from experiments.papers import specification
from tff_shift.reporting.pages import contents


def test_the_papers_table_11_follows_from_its_table_1():
  means = specification.load("fed_evolve/1")
  spec = specification.load("fed_evolve/11")
  of_planned = job_lib.plan(means, reductions.Reductions())
  planned = job_lib.plan(spec, reductions.Reductions())
  printed = [each for each in of_planned if each.wanted.printed]
  made = contents.Contents(
    name="",
    title="",
    columns=[
      contents.Column(heading=heading, metric="")
      for heading in dict.fromkeys(each.column for each in printed)
    ],
    cells=[
      contents.Cell(
        row=each.row,
        column=each.column,
        # The mean of these two is the paper's.
        by_seed={
          0: each.wanted.printed.mean + 1,
          1: each.wanted.printed.mean - 1,
        },
      )
      for each in printed
    ],
  )
  assert len(made.columns) == 6
  cells = computed.paired_t(spec, planned, of_planned, made)
  assert len(cells) == 28
  for cell in cells:
    # The paper prints three digits.
    assert cell.by_seed == pytest.approx({0: cell.paper.mean}, rel=0.01)
