"""The file of states: versions, and what is noticed of damage and crashes."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys

import pytest

from tff_shift import files
from tff_shift.simulation.storage import state_file


@pytest.fixture
def path(tmp_path):
  return tmp_path / "folder" / "states.sqlite"


def open_file(path, key="run"):
  return state_file.StateFile(path, key)


def rows(path):
  with contextlib.closing(sqlite3.connect(path)) as connection:
    return connection.execute(
      "SELECT client, version, content FROM states ORDER BY client, version"
    ).fetchall()


def write_three_steps(path) -> list[state_file.Content]:
  """Commits at steps 2, 4 and 9; the first is pruned."""
  file = open_file(path)
  file.write([(1, b"one"), (2, b"two"), (3, b"three")])
  contents = [file.commit(2)]
  file.prune(2)
  file.write([(2, b"two'")])
  file.write([(2, b"two''")])
  contents.append(file.commit(4))
  file.prune(2)
  file.write([(3, b"three'"), (4, b"four")])
  contents.append(file.commit(9))
  file.prune(4)
  file.close()
  return contents


def test_rows_are_the_versions_that_two_checkpoints_need(path):
  contents = write_three_steps(path)
  assert [each.num_clients for each in contents] == [3, 3, 4]
  file = open_file(path)
  file.restore(9, contents[2], 4)
  assert file.commit(9) == contents[2]
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
  contents = dict(zip([2, 4, 9], write_three_steps(path), strict=True))
  file = open_file(path)
  file.restore(step, contents[step], 4)
  expected = {1: b"one", 2: b"two''", 3: b"three"}
  if step == 9:
    expected |= {3: b"three'", 4: b"four"}
  assert dict(file.read_all()) == expected
  assert {i: file.read(i) for i in range(1, 6)} == {4: None, 5: None} | expected
  assert len(file) == len(expected)
  # And goes on as if nothing had been in between.
  file.write([(1, b"new")])
  again = file.commit(11)
  file.close()
  file = open_file(path)
  file.restore(11, again, step)
  assert dict(file.read_all()) == expected | {1: b"new"}


def test_digest_depends_on_the_states_alone(path, tmp_path):
  one, other = open_file(path), open_file(tmp_path / "other", "key")
  one.write([(1, b"a"), (2, b"b")])
  one.commit(1)
  one.write([(1, b"c")])
  other.write([(2, b"b"), (1, b"c")])
  assert one.commit(2) == other.commit(9)
  other.write([(2, b"c"), (1, b"b")])
  assert one.commit(3) != other.commit(10)


def test_earliest_step_is_gone_after_two_others(path):
  contents = write_three_steps(path)
  file = open_file(path)
  file.restore(9, contents[2], 4)
  file.commit(9)
  with pytest.raises(state_file.UnusableError, match="has other states"):
    file.restore(2, contents[0], 2)
  file.restore(4, contents[1], 4)


def change_content(path):
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.execute("UPDATE states SET content = 'x' WHERE client = 1")
    connection.commit()


def remove_row(path):
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.execute("DELETE FROM states WHERE client = 1")
    connection.commit()


def flip(path):
  content = bytearray(path.read_bytes())
  content[content.rindex(b"one")] ^= 1
  path.write_bytes(content)


def other_key(path):
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.execute("UPDATE run SET key = 'other'")
    connection.commit()


def other_database(path):
  path.unlink()
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.execute("CREATE TABLE things (number INTEGER)")


@pytest.mark.parametrize(
  "damage, reason",
  [
    (os.unlink, "is missing"),
    (lambda path: os.truncate(path, 0), "is damaged: no such table: run"),
    (lambda path: os.truncate(path, 5000), "is damaged: "),
    (
      lambda path: path.write_text("text, text " * 1000),
      "is damaged: file is not a database",
    ),
    (flip, "is damaged: the state of client 1 has changed"),
    (change_content, "is damaged: the state of client 1 has changed"),
    (remove_row, "has other states"),
    (other_key, "is of another run"),
    (other_database, "is damaged: no such table: run"),
  ],
)
def test_damage_is_noticed_and_a_new_file_can_be_made(path, damage, reason):
  contents = write_three_steps(path)
  damage(path)
  file = open_file(path)
  for step, content in ((9, contents[2]), (4, contents[1])):
    with pytest.raises(state_file.UnusableError) as error:
      file.restore(step, content, 4)
    assert str(error.value).startswith(
      f"the file of its clients' states {reason}"
    )
    assert "\n" not in str(error.value)
  file.remove()
  assert list(path.parent.iterdir()) == []
  file.write([(1, b"a")])
  content = file.commit(1)
  file.close()
  open_file(path).restore(1, content, 1)


_WRITER = """
import os, sqlite3, sys
from tff_shift.simulation.storage import state_file
file = state_file.StateFile(state_file.pathlib.Path(sys.argv[1]), "run")
file.restore(9, state_file.Content(4, sys.argv[2]), 4)
# More than SQLite holds in memory.
file.write((client, bytes([client % 256]) * 100_000) for client in range(200))
if sys.argv[3] == "committed":
  file.commit(10)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("moment", ["open", "committed"])
def test_killed_process_leaves_the_states_of_before(path, moment):
  content = write_three_steps(path)[-1]
  ended = subprocess.run(
    [sys.executable, "-c", _WRITER, path, content.digest, moment],
    env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    check=False,
  )
  assert ended.returncode == -signal.SIGKILL
  # It did write there.
  assert path.stat().st_size > 10_000_000
  file = open_file(path)
  file.restore(9, content, 4)
  assert dict(file.read_all()) == {
    1: b"one",
    2: b"two''",
    3: b"three'",
    4: b"four",
  }
  assert file.commit(9) == content
  file.close()
  assert len(rows(path)) == 5
  assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_step_before_the_first_state_needs_no_file(path):
  file = open_file(path)
  content = file.commit(3)
  file.write([(1, b"one")])
  file.close()
  file = open_file(path)
  file.restore(3, content, 3)
  assert len(file) == 0 and file.read(1) is None and not path.exists()
  file.write([(2, b"two")])
  with pytest.raises(state_file.UnusableError, match="has other states"):
    content = file.commit(4)
    file.restore(3, state_file.Content(1, content.digest), 3)


def test_rows_do_not_pile_up(path):
  file, oldest = open_file(path), 0
  for step in range(1, 30):
    file.write((client, bytes(5000)) for client in range(step % 3, 20, 2))
    file.commit(step)
    file.prune(oldest)
    oldest = step
  file.close()
  assert len(rows(path)) <= 2 * 20
  assert path.stat().st_size < 60 * 5000


def test_link_is_not_written_through(path):
  outside = path.with_name("outside")
  path.parent.mkdir(exist_ok=True)
  path.symlink_to(outside)
  with pytest.raises(files.WriteError, match="it is a link"):
    open_file(path).write([(0, b"state")])
  assert not outside.exists()


def test_what_one_writes_another_waits_for_and_is_told(path):
  contents = write_three_steps(path)
  shutil.copy(path, path.with_name("copy"))
  one, other = open_file(path), open_file(path)
  one.restore(9, contents[2], 4)
  with pytest.raises(files.WriteError, match=r"cannot be used: .* locked"):
    other.restore(9, contents[2], 4)
  one.close()
  other.restore(9, contents[2], 4)
