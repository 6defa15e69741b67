"""What a binary writes down of a run."""

from experiments import comparison
from tff_shift.simulation import results


def test_predictions_that_are_no_numbers_are_warned_of_once(
  tmp_path, read_rows, capsys
):
  folder = results.RunFolder.create(tmp_path / "run")
  run = comparison.Run(
    {"algorithm": "fed_avg", "seed": 3},
    ["fed_avg", "seed_3"],
    bar=None,
    checkpoint=None,
    folder=folder,
  )
  for step, share in enumerate([0.0, 0.25, 1.0]):
    run.write(
      {"round": step}, {"client_not_finite": share, "server_loss": None}
    )
    assert bool(capsys.readouterr().err) == (step == 1)
  assert [row["client_not_finite"] for row in read_rows(folder.path)] == [
    "0.0",
    "0.25",
    "1.0",
  ]
