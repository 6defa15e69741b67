"""Tests of the one door to all executors."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.fixtures import tables
from tff_shift import execution
from tff_shift.execution import in_process

ROOT = Path(__file__).parents[2]


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def total(values):
  return tff.federated_sum(values)


@pytest.mark.parametrize("executor", ["auto", "in_process"])
def test_in_process_runs(executor):
  with execution.use(executor, max_concurrent_clients=2) as context:
    assert isinstance(context, in_process.InProcessContext)
    assert total([1, 2, 3]) == 6


@pytest.mark.cpp
def test_local_runs_in_another_process():
  with execution.use("local", max_concurrent_clients=1) as context:
    assert isinstance(context, tff.framework.SyncExecutionContext)
    assert total([1, 2, 3]) == 6


@pytest.mark.parametrize(
  "executor, settings, message",
  tables.cases("""
"gpu", {}
    one of auto, in_process, local, remote, got 'gpu'
"local", {"materialize": False}
    materialize is a setting of .* in_pro
"local", {"client_devices": ["GPU:0"]}
    client_devices is a setting
"local", {"max_concurrent_clients": 0}
    clients must be 1 or more
"in_process", {"max_concurrent_clients": 0}
    clients must be 1 or more
"""),
)
def test_bad_settings_are_named(executor, settings, message):
  with pytest.raises(ValueError, match=message):
    execution.use(executor, **settings)


def test_import_is_light():
  # `--help` of a binary must not take seconds.
  code = (
    "import sys, tff_shift.execution; "
    "print([name for name in sys.modules if name.startswith('tensorflow')])"
  )
  output = subprocess.run(
    [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
  ).stdout
  assert output.strip() == "[]"
