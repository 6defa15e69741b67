"""Tests of what cannot fit in memory."""

import pathlib

import pytest

from tests.fixtures import tables
from tff_shift._util import memory

_MACHINE = pathlib.Path("/proc/meminfo")


@pytest.mark.skipif(not _MACHINE.exists(), reason="not Linux")
def test_limit_is_the_whole_memory_of_the_machine(monkeypatch):
  monkeypatch.setattr(memory, "_GROUP_LIMITS", ())
  total, *_ = _MACHINE.read_text().splitlines()
  assert total.split() == ["MemTotal:", str(memory.limit() // 1024), "kB"]


@pytest.mark.parametrize(
  "said, expected",
  [
    ("1048576\n", 2**20),
    ("max\n", None),
    # Without a limit, the older control groups say nearly 2**63.
    (f"{2**63 - 4096}\n", None),
    (None, None),
  ],
)
def test_limit_is_that_of_a_container(said, expected, tmp_path, monkeypatch):
  file = tmp_path / "memory.max"
  if said is not None:
    file.write_text(said)
  monkeypatch.setattr(memory, "_GROUP_LIMITS", ())
  of_machine = memory.limit()
  monkeypatch.setattr(memory, "_GROUP_LIMITS", (tmp_path / "none", file))
  assert memory.limit() == (expected or of_machine)


@pytest.mark.parametrize(
  "num_bytes, expected",
  tables.cases("""
0
    0 bytes
1023
    1,023 bytes
1024
    1 KiB
1536
    1.5 KiB
1073741823
    1,024 MiB
824633720832
    768 GiB
9223372036854775808
    8,192 PiB
"""),
)
def test_sizes_are_told_in_units(num_bytes, expected):
  assert memory.described(num_bytes) == expected


def test_what_is_merely_big_is_right(monkeypatch):
  monkeypatch.setattr(memory, "limit", lambda: 2048)
  memory.check(2048, "--size=512")
  with pytest.raises(memory.TooLargeError) as error:
    memory.check(2049, "--size=513")
  assert str(error.value) == (
    "--size=513: this would need 2 KiB of memory, but only 2 KiB are available"
  )
