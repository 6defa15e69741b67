"""What a binary writes down of a run."""

import types

from tff_shift.command_line import comparison
from tff_shift.simulation.storage import results


def test_predictions_that_are_no_numbers_are_warned_of_once(tmp_path, capsys):
  folder = results.RunFolder.create(tmp_path / "run")
  run = comparison.Run(
    None,
    3,
    {"algorithm": "fed_avg", "seed": 3},
    ["fed_avg", "seed_3"],
    bar=types.SimpleNamespace(update=lambda *args, **values: None),
    checkpoint=None,
    folder=folder,
    trackers=[],
    saves_model=False,
  )
  for step, share in enumerate([0.0, 0.25, 1.0]):
    row = {"round": step}, {"client_not_finite": share, "server_loss": None}
    run.on_step(
      step, None, types.SimpleNamespace(rows=lambda _, row=row: [row])
    )
    assert bool(capsys.readouterr().err) == (step == 1)
  _, *rows = (folder.path / "metrics.csv").read_text().splitlines()
  assert rows == ["fed_avg,3,0,0.0,", "fed_avg,3,1,0.25,", "fed_avg,3,2,1.0,"]
