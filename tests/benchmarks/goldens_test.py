"""Digests of results made by hand: one changed bit is a difference."""

import contextlib
import json
import re
import sqlite3

import numpy as np
import pytest

from benchmarks import goldens

_NAME = "data/arrays"


@pytest.fixture
def write(tmp_path):
  """Returns `write(folder, **changes)`, the digests of results by algorithm."""

  def write(
    folder, column="loss", loss="0.25", seconds=1.0, gradients=35.0, weight=1.0
  ):
    folder = tmp_path / folder
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "metrics.csv").write_text(
      f"algorithm,round,{column}\nfed_avg,1,{loss}\nfed_rep,1,0.5\n"
    )
    common = {"setting": {"rounds": 1}, "seconds_per_round": seconds}
    entries = [
      {"algorithm": "fed_avg", "gradients": gradients, **common},
      {"algorithm": "fed_rep", "gradients": 35.0, **common},
    ]
    (folder / "summary.json").write_text(json.dumps({"runs": entries}))
    path = folder / "checkpoints" / "fed_avg-circle-0.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
      connection.execute(
        "CREATE TABLE states (owner INTEGER, part INTEGER, step INTEGER,"
        " content BLOB)"
      )
      for step, value in ((1, 0.0), (2, weight)):
        row = -1, 0, step, np.float32([value, 2]).tobytes()
        connection.execute("INSERT INTO states VALUES (?, ?, ?, ?)", row)
      connection.commit()
    model = folder / "model" / "fed_rep" / "seed_0"
    model.mkdir(parents=True)
    np.savez(model / "weights.npz", kernel=np.float32([weight]))
    return goldens.digests(folder)

  return write


def _cells(old, new, changed=()):
  lines, is_equal = goldens.compare({_NAME: old}, {_NAME: new}, changed)
  return [line.split()[1:] for line in lines[1:]], is_equal


def test_times_do_not_count(write):
  assert _cells(write("old"), write("new", seconds=2.0)) == (
    [["fed_avg", *["equal"] * 3], ["fed_rep", *["equal"] * 3]],
    True,
  )


@pytest.mark.parametrize(
  "part, change, algorithms",
  [
    ("metrics", {"loss": "0.25000000000000006"}, ["fed_avg"]),
    (
      "weights",
      {"weight": np.nextafter(*np.float32([1, 2]))},
      ["fed_avg", "fed_rep"],
    ),
    ("summary", {"gradients": 36.0}, ["fed_avg"]),
  ],
)
def test_one_bit_differs_until_it_is_listed(write, part, change, algorithms):
  old, new = write("old"), write("new", **change)
  differing = [
    (algorithm, name)
    for algorithm in ("fed_avg", "fed_rep")
    for name in ("metrics", "weights", "summary")
    if old[algorithm][name] != new[algorithm][name]
  ]
  assert differing == [(algorithm, part) for algorithm in algorithms]
  changed = [
    {
      "name": f"{_NAME} {algorithm}",
      "part": part,
      "old": old[algorithm][part][:12],
      "new": new[algorithm][part][:12],
    }
    for algorithm in algorithms
  ]
  assert not _cells(old, new)[1]
  assert _cells(old, new, changed)[1]
  assert not _cells(new, old, changed)[1]


def test_mapped_names_are_equal(write, monkeypatch):
  monkeypatch.setitem(goldens._RENAMED, "loss", "train_loss")
  old, new = write("old"), write("new", column="train_loss")
  assert old == new
  assert old != write("other", column="client_loss")


def test_failed_and_missing_runs_are_not_equal(write):
  digests = write("old")
  absent = {"error": "evolving: data set 'reddit' is not in /data"}
  assert _cells(absent, absent)[1]
  assert not _cells(digests, absent)[1]
  assert not _cells(digests, {"error": "evolving: --rounds=0"})[1]
  assert not goldens.compare({_NAME: digests}, {}, [])[1]


def test_each_algorithm_is_in_a_run():
  texts = [flags for _, flags in goldens.runs(goldens._ROOT).values()]
  presets = goldens._ROOT / "experiments" / "presets"
  texts += [path.read_text() for path in presets.rglob("*.flags")]
  names = set(
    re.findall(r"\w+", " ".join(re.findall("--algorithm=.*", "\n".join(texts))))
  )
  algorithms = goldens._ROOT / "tff_shift" / "algorithms"
  assert {path.stem for path in algorithms.glob("[!_]*.py")} <= names
