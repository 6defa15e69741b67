"""The file of a run: steps, and what is noticed of damage and crashes."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys

import pytest

from tff_shift._util import files
from tff_shift.simulation.storage import run_file


@pytest.fixture
def path(tmp_path):
  return tmp_path / "folder" / "run.sqlite"


def open_file(path, key="run"):
  return run_file.RunFile(path, key)


def execute(path, statement):
  with contextlib.closing(sqlite3.connect(path)) as connection, connection:
    return connection.execute(statement).fetchall()


def rows(path):
  return execute(
    path, "SELECT owner, step, content FROM states ORDER BY owner, part, step"
  )


def commit(file, step):
  file.commit(step, f"record {step}")


def states(file) -> dict[int, bytes]:
  return dict(file.read_clients())


def write_three_steps(path):
  """Commits at steps 2, 4 and 9; the first is removed."""
  file = open_file(path)
  file.write([(1, b"one"), (2, b"two"), (3, b"three")])
  commit(file, 2)
  file.write([(2, b"two'")])
  file.write([(2, b"two''")])
  commit(file, 4)
  file.write([(3, b"three'"), (4, b"four")])
  commit(file, 9)
  file.close()


def test_rows_are_those_that_two_checkpoints_need(path):
  write_three_steps(path)
  file = open_file(path)
  assert file.checkpoints() == {9: "record 9", 4: "record 4"}
  file.restore(9)
  file.close()
  assert rows(path) == [
    (1, 1, b"one"),
    (2, 3, b"two''"),
    (3, 1, b"three"),
    (3, 5, b"three'"),
    (4, 5, b"four"),
  ]


@pytest.mark.parametrize("step", [4, 9])
def test_step_gives_its_states(path, step):
  write_three_steps(path)
  file = open_file(path)
  file.restore(step)
  expected = {1: b"one", 2: b"two''", 3: b"three"}
  if step == 9:
    expected |= {3: b"three'", 4: b"four"}
  assert states(file) == expected
  assert {i: file.read(i) for i in range(1, 6)} == {4: None, 5: None} | expected
  # And goes on as if nothing had been in between.
  file.write([(1, b"new")])
  commit(file, 11)
  file.close()
  file = open_file(path)
  assert list(file.checkpoints()) == [11, step]
  file.restore(11)
  assert states(file) == expected | {1: b"new"}


@pytest.mark.parametrize("step", [9, 5, 3])
def test_step_moves_down(path, step):
  write_three_steps(path)
  file = open_file(path)
  file.restore(9)
  file.move(step)
  file.write([(4, b"four'")])
  commit(file, step)
  file.close()
  file = open_file(path)
  assert file.checkpoints() == {step: f"record {step}"}
  file.restore(step)
  expected = {1: b"one", 2: b"two''", 3: b"three'", 4: b"four'"}
  assert states(file) == expected


def test_large_states_have_several_rows(path, monkeypatch):
  monkeypatch.setattr(run_file, "_MAX_PART", 4)
  file = open_file(path)
  server, client = b"0123456789", b"abcdefgh"
  file.write([(run_file.SERVER, server), (0, client), (1, b"")])
  commit(file, 1)
  file.close()
  assert [len(row[2]) for row in rows(path)] == [4, 4, 2, 4, 4, 0]
  file = open_file(path)
  file.restore(1)
  assert file.read(run_file.SERVER) == server
  assert states(file) == {0: client, 1: b""}
  file.close()
  execute(path, "UPDATE states SET part = part + 9 WHERE owner = -1")
  with pytest.raises(run_file.UnusableError, match="its digest is another"):
    open_file(path).restore(1)


def test_earliest_step_is_gone_after_two_others(path):
  write_three_steps(path)
  file = open_file(path)
  with pytest.raises(run_file.UnusableError, match="its digest is another"):
    file.restore(2)
  file.restore(4)


def flip(path):
  content = bytearray(path.read_bytes())
  content[content.rindex(b"one")] ^= 1
  path.write_bytes(content)


def other_database(path):
  path.unlink()
  execute(path, "CREATE TABLE things (number INTEGER)")


@pytest.mark.parametrize(
  "damage, reason",
  [
    (
      lambda path: os.truncate(path, 0),
      "the file is damaged: no such table: run",
    ),
    (lambda path: os.truncate(path, 5000), "the file is damaged: "),
    (
      lambda path: path.write_text("text, text " * 1000),
      "the file is damaged: file is not a database",
    ),
    (other_database, "the file is damaged: no such table: run"),
    (
      lambda path: execute(path, "UPDATE run SET key = 'other'"),
      "it belongs to a run with other flags",
    ),
    (flip, "it is damaged: its digest is another"),
    (
      lambda path: execute(
        path, "UPDATE states SET content = 'x' WHERE owner = 1"
      ),
      "it is damaged: its digest is another",
    ),
  ],
)
def test_damage_is_noticed_and_a_new_file_can_be_made(path, damage, reason):
  write_three_steps(path)
  damage(path)
  file = open_file(path)
  for step in (9, 4):
    with pytest.raises(run_file.UnusableError) as error:
      file.checkpoints()
      file.restore(step)
    assert str(error.value).startswith(reason)
    assert "\n" not in str(error.value)
  file.remove()
  assert list(path.parent.iterdir()) == []
  file.write([(1, b"a")])
  commit(file, 1)
  file.close()
  open_file(path).restore(1)


def run_until_killed(program, *arguments):
  ended = subprocess.run(
    [sys.executable, "-c", program, *arguments],
    env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    check=False,
  )
  assert ended.returncode == -signal.SIGKILL


_WRITER = """
import os, sqlite3, sys
from tff_shift.simulation.storage import run_file
file = run_file.RunFile(run_file.pathlib.Path(sys.argv[1]), "run")
file.restore(9)
# More than SQLite holds in memory.
file.write((client, bytes([client % 256]) * 100_000) for client in range(200))
if sys.argv[2] == "committed":
  file.commit(10, "record 10")
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("moment", ["open", "committed"])
def test_killed_process_leaves_the_states_of_before(path, moment):
  write_three_steps(path)
  run_until_killed(_WRITER, path, moment)
  # It did write there.
  assert path.stat().st_size > 10_000_000
  file = open_file(path)
  steps = [10, 9] if moment == "committed" else [9, 4]
  assert list(file.checkpoints()) == steps
  file.restore(9)
  assert states(file) == {
    1: b"one",
    2: b"two''",
    3: b"three'",
    4: b"four",
  }
  commit(file, 11)
  file.close()
  assert len(rows(path)) == 4
  assert [each.name for each in path.parent.iterdir()] == [path.name]


_CREATOR = """
import os, pathlib, signal, sys
from tff_shift.simulation.storage import run_file
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run_file.RunFile(pathlib.Path(sys.argv[1]), "run").write([(1, b"one")])
"""


def test_process_that_is_killed_while_it_creates_the_file_leaves_none(path):
  run_until_killed(_CREATOR, path)
  (left,) = path.parent.iterdir()
  assert left != path and left.stat().st_size > 0
  assert open_file(path).checkpoints() == {}
  write_three_steps(path)
  assert len(rows(path)) == 5


def test_rows_do_not_pile_up(path):
  file, sizes = open_file(path), []
  for step in range(1, 30):
    file.write((client, bytes(5000)) for client in range(step % 3, 20, 2))
    commit(file, step)
    sizes.append(path.stat().st_size)
  file.close()
  assert len(rows(path)) <= 2 * 20
  assert max(sizes) == sizes[9]


def test_what_one_writes_another_waits_for_and_is_told(path):
  write_three_steps(path)
  one, other = open_file(path), open_file(path)
  for each in (one, other):
    each.restore(9)
  one.write([(1, b"mine")])
  with pytest.raises(files.WriteError, match=r"cannot be used: .* locked"):
    other.write([(1, b"theirs")])
  one.close()
  open_file(path).restore(9)
