"""A small table that has everything that a page shows."""

import dataclasses

import pytest

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


def _paper(mean, spread=None, num_seeds=None, note=""):
  return contents_lib.PaperValue(
    mean=mean, spread=spread, num_seeds=num_seeds, note=note
  )


def _cell(row, column, *values, **options):
  return contents_lib.Cell(
    row=row, column=column, by_seed=dict(enumerate(values)), **options
  )


def _trial(label, *values, is_selected=False):
  return contents_lib.Trial(
    label=label, by_seed=dict(enumerate(values)), is_selected=is_selected
  )


_BUDGET = contents_lib.Budget(
  num_settings=2,
  num_rounds=2,
  num_gradients=35.0,
  bytes_down=1_398_572,
  bytes_up=1_398_592,
  seconds_per_round=0.25,
  participation=0.5,
)


def _curve(row, seed, step, points):
  return contents_lib.Curve(
    row=row, column=_CLIENT, seed=seed, step=step, points=points
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
      contents_lib.Column(heading=_CLIENT, metric="accuracy"),
      contents_lib.Column(
        heading=_LOSS, metric="loss", unit="", higher_is_better=False
      ),
    ),
    cells=(
      # Far below the paper, for certain.
      _cell(
        "FedAvg",
        _CLIENT,
        *(60.0, 60.5, 61.0, 60.5),
        paper=_paper(70.0, 0.5, 4, "Table 2 prints 71."),
        run=_run("fed_avg"),
        program=_paper(62.0, note="The program has one seed."),
        trials=[
          _trial(
            "learning rate 0.01", 60.0, 60.5, 61.0, 60.5, is_selected=True
          ),
          _trial("learning rate 0.001", 63.0, 63.5, 64.0, 63.5),
        ],
        budget=_BUDGET,
      ),
      _cell(
        ODD_NAME, _CLIENT, *(70.0, 72.0), paper=_paper(71.5, 1.0, 3), run=odd
      ),
      _cell(
        "a_b%", _CLIENT, 50.0, 55.0, 54.0, paper=_paper(80.0, 2.0), run=other
      ),
      _cell(
        "APFL", _CLIENT, paper=_paper(60.0, 1.0, 3), absent="failed: no room"
      ),
      _cell(
        "T3A",
        _CLIENT,
        paper=_paper(65.0, 1.0, 3),
        absent="paper only: its data set is not at hand",
      ),
      _cell("FedAvg", _LOSS, 0.5, 0.25, paper=_paper(0.5), run=_run("fed_avg")),
      _cell(ODD_NAME, _LOSS, 0.25, 0.5, paper=_paper(0.3), run=odd),
      _cell("a_b%", _LOSS, absent="not run"),
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
      _curve("FedAvg", 0, "round", [(1, 40.0), (2, 60.0)]),
      _curve("FedAvg", 1, "round", [(1, 44.0), (2, 60.0)]),
      _curve(ODD_NAME, 0, "round", [(1, 50.0)]),
      _curve("FedAvg", 0, "domain", [(0, 90.0), (1, 80.0), (2, 60.0)]),
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
