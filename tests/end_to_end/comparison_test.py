"""What a binary writes down of a run."""

import types

from tff_shift.command_line import comparison
from tff_shift.reporting import trackers
from tff_shift.simulation.storage import results


def tracked(folder):
  return [trackers.TensorBoard(folder.path / "tensorboard", "fed_avg/seed_3")]


def test_predictions_that_are_no_numbers_are_warned_of_once(
  tmp_path, read_rows, capsys
):
  folder = results.RunFolder.create(tmp_path / "run")
  run = comparison.Run(
    None,
    3,
    {"algorithm": "fed_avg", "seed": 3},
    ["fed_avg", "seed_3"],
    bar=types.SimpleNamespace(update=lambda *args, **values: None),
    checkpoint=None,
    folder=folder,
    trackers=tracked(folder),
    class_names=None,
  )
  for step, share in enumerate([0.0, 0.25, 1.0]):
    row = {"round": step}, {"client_not_finite": share, "server_loss": None}
    run.on_step(
      step, None, types.SimpleNamespace(rows=lambda _, row=row: [row])
    )
    assert bool(capsys.readouterr().err) == (step == 1)
  assert [row["client_not_finite"] for row in read_rows(folder.path)] == [
    "0.0",
    "0.25",
    "1.0",
  ]


def test_every_round_has_a_loss_and_evaluations_have_rows(
  tmp_path, read_rows, read_scalars
):
  folder = results.RunFolder.create(tmp_path / "run")
  run = comparison.Run(
    None,
    3,
    {"algorithm": "fed_avg"},
    ["fed_avg", "seed_3"],
    bar=types.SimpleNamespace(update=lambda *args, **values: None),
    checkpoint=None,
    folder=folder,
    trackers=tracked(folder),
    class_names=None,
  )
  evaluation = types.SimpleNamespace(
    rows=lambda step: iter([({"round": step}, {"accuracy": 75.0})])
  )
  for round_num, found in ((1, None), (2, evaluation), (3, None)):
    run.on_loss(round_num, 1 / 2**round_num)
    run.on_step(round_num, 1 / 2**round_num, found)
  assert read_scalars(folder.path) == {
    "fed_avg/seed_3/train_loss": [(1, 0.5), (2, 0.25), (3, 0.125)],
    "fed_avg/seed_3/accuracy": [(2, 75.0)],
  }
  (row,) = read_rows(folder.path)
  assert list(row.items()) == [
    ("algorithm", "fed_avg"),
    ("round", "2"),
    ("train_loss", "0.25"),
    ("accuracy", "75.0"),
  ]
