"""A training on workers over a bad network, in which everything fails once."""

import shutil

import pytest

from benchmarks import soak

pytestmark = [pytest.mark.cpp, pytest.mark.long]


def test_numbers_are_those_of_an_undisturbed_run_and_nothing_is_left():
  faults = (
    *(("reset", 0), ("restart worker", 0), ("cut off", 1)),
    ("kill driver", 0),
  )
  result = soak.run(
    soak.Settings(
      num_workers=2,
      seconds=600,
      faults=faults,
      repeat=False,
      pause=0.2,
      rounds=10,
      delay=0.005,
      # No worker is lost, however slow the machine is.
      worker_timeout=300,
      tls=shutil.which("openssl") is not None,
    )
  )
  assert result.differences == []
  assert result.left == []
  for name, seconds in faults:
    assert result.counts[f"{name}, {seconds} s"] == 1
  assert result.rounds % 10 == 0
