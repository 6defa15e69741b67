"""A small table that has everything that a page shows."""

import dataclasses

import pytest

from tests.fixtures import page_cells
from tff_shift.reporting.pages import contents as contents_lib

_CLIENT = ("Digits", "client")
_LOSS = ("loss",)

ODD_NAME = '<b>&"x"'


def _run(name, **changes):
  options = {
    "folder": f"runs/{name}",
    "command": f"python -m experiments.evolving --algorithm={name} --seeds=0,1",
    "chosen": {"learning rate": "0.01"},
    "scores": {"learning rate 0.001": 12.5, "learning rate 0.01": 87.25},
    "seconds": 30.0,
  }
  return contents_lib.Run(**(options | changes))


_BUDGET = contents_lib.Budget(
  num_settings=2,
  num_rounds=2,
  num_gradients=35.0,
  bytes_down=1_398_572,
  bytes_up=1_398_592,
  seconds_per_round=0.25,
  participation=0.5,
)


@pytest.fixture(scope="session")
def contents():
  """A table of five methods, one of them partial, one failed, one not run."""
  odd = _run("odd", is_finished=False, num_diverged=3)
  other = _run("a_b%")
  return contents_lib.Contents(
    name="demo/1",
    title="A table & its page",
    source="A paper, Table 1",
    command="python -m experiments.reproduce demo/1 --reduce='rounds=2'",
    machine="2 cores",
    date="2026-11-23",
    is_full=False,
    rows=("FedAvg", ODD_NAME, "a_b%", "APFL", "T3A"),
    columns=(
      page_cells.column(*_CLIENT),
      page_cells.column(*_LOSS, metric="loss", unit="", higher_is_better=False),
    ),
    cells=(
      # Far below the paper, for certain.
      page_cells.cell(
        "FedAvg",
        [60.0, 60.5, 61.0, 60.5],
        _CLIENT,
        paper=page_cells.paper(70.0, 0.5, 4, "Table 2 prints 71."),
        run=_run("fed_avg"),
        program=page_cells.paper(62.0, note="The program has one seed."),
        trials=[
          page_cells.trial(
            "learning rate 0.01", 60.0, 60.5, 61.0, 60.5, is_selected=True
          ),
          page_cells.trial("learning rate 0.001", 63.0, 63.5, 64.0, 63.5),
        ],
        budget=_BUDGET,
      ),
      page_cells.cell(
        ODD_NAME,
        [70.0, 72.0],
        _CLIENT,
        paper=page_cells.paper(71.5, 1.0, 3),
        run=odd,
      ),
      page_cells.cell(
        "a_b%",
        [50.0, 55.0, 54.0],
        _CLIENT,
        paper=page_cells.paper(80.0, 2.0),
        run=other,
      ),
      page_cells.cell(
        "APFL",
        column=_CLIENT,
        paper=page_cells.paper(60.0, 1.0, 3),
        absent="failed: no room",
      ),
      page_cells.cell(
        "T3A",
        column=_CLIENT,
        paper=page_cells.paper(65.0, 1.0, 3),
        absent="paper only: its data set is not at hand",
      ),
      page_cells.cell(
        "FedAvg",
        [0.5, 0.25],
        _LOSS,
        paper=page_cells.paper(0.5),
        run=_run("fed_avg"),
      ),
      page_cells.cell(
        ODD_NAME, [0.25, 0.5], _LOSS, paper=page_cells.paper(0.3), run=odd
      ),
      page_cells.cell("a_b%", column=_LOSS, absent="not run"),
    ),
    protocol=(
      contents_lib.Setting(
        name="rounds", paper="100", ours="2", is_reduced=True, reason="budget"
      ),
      contents_lib.Setting(name="seeds", paper="", ours="0, 1"),
      contents_lib.Setting(
        name="model", paper="ResNet", program="LeNet", ours="MLP"
      ),
    ),
    curves=(
      page_cells.curve("FedAvg", [40.0, 60.0], _CLIENT),
      page_cells.curve("FedAvg", [44.0, 60.0], _CLIENT, seed=1),
      page_cells.curve(ODD_NAME, [50.0], _CLIENT),
      page_cells.curve("FedAvg", [90.0, 80.0, 60.0], _CLIENT, step="domain"),
    ),
    decisions=(
      (
        "Distance",
        "| where | what |\n| --- | --- |\n| `--distance` | l2 |\n\n"
        "<script>document.title = 'taken'</script> [here](results/x.md)",
      ),
    ),
    problems=("APFL: no room",),
    floors=("FedAvg",),
    ceilings=("a_b%",),
    references=("FedAvg",),
    clients=(
      contents_lib.ClientValues(
        column=_CLIENT,
        by_method={
          "FedAvg": {0: [60.0, 60.0, 60.0, 60.0]},
          ODD_NAME: {0: [80.0, 80.0, 70.0, 50.0]},
        },
      ),
    ),
  )


@pytest.fixture(scope="session")
def empty(contents):
  """A table of which nothing is there yet."""
  return dataclasses.replace(
    contents, cells=(), rows=(), columns=(), curves=(), protocol=(), clients=()
  )
