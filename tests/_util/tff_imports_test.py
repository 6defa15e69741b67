"""TFF beside packages that are absent, or newer than it knows."""

import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from tff_shift._util import tff_imports

needs_keras_3 = pytest.mark.skipif(
  not importlib.util.find_spec("tf_keras"),
  reason="TensorFlow 2.14 brings no Keras 3",
)
_ABSENT = """
import sys

class Absent:
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] in ("jax", "jaxlib", "vizier"):
      raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Absent())
"""
_COMPUTE = """
import numpy as np
import tff_shift
import tensorflow_federated as tff

tff_shift.execution.use("in_process")

@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def total(values):
  return tff.federated_sum(values)

print(total([1.0, 2.0]), "jax" in sys.modules, "vizier" in sys.modules)
tff.learning.dp_aggregator(0.5, 10)
for function in (
  lambda: tff.jax.computation(lambda x: x, np.int32),
  tff.learning.programs.train_model_with_vizier,
):
  try:
    function()
  except ImportError as error:
    print(error)
"""


def run(program, **options):
  process = subprocess.run(
    [sys.executable, "-c", program],
    capture_output=True,
    text=True,
    check=False,
    **options,
  )
  return process.returncode, process.stdout.splitlines(), process.stderr


@pytest.mark.slow
def test_tff_computes_without_jax_and_vizier_and_ends():
  # Its children ignore the signal with which TFF ends its worker, as in the
  # background of a script.
  def ignore():
    signal.signal(signal.SIGINT, signal.SIG_IGN)

  code, lines, errors = run(_ABSENT + _COMPUTE, preexec_fn=ignore, timeout=300)
  assert code == 0, errors
  assert lines == [
    "3.0 False False",
    "tff.jax.computation needs jax and jaxlib from 0.4.14 to 0.5.3 (No module"
    " named 'jax')",
    "tff.learning.programs.train_model_with_vizier needs google-vizier (No"
    " module named 'vizier')",
  ]
  assert "Traceback" not in errors


@pytest.mark.slow
def test_tff_may_be_imported_before_the_package(tmp_path):
  program = _ABSENT + (
    "import tensorflow_federated as tff; print('tff_shift' in sys.modules)"
  )
  # Not in the checkout, whose packages are on the path.
  assert run(program, cwd=tmp_path) == (0, ["True"], "")


def test_a_program_without_tff_does_not_import_the_package(tmp_path):
  program = "import sys, json; print('tff_shift' in sys.modules)"
  assert run(program, cwd=tmp_path) == (0, ["False"], "")


@pytest.mark.slow
def test_an_import_of_tensorflow_writes_nothing():
  assert run("import tff_shift, tensorflow") == (0, [], "")


def test_other_lines_of_an_import_are_passed_on(capfd):
  with tff_imports._without_noise():
    os.write(2, b"a failure\nWARNING: All log messages before")
    os.write(2, b" absl::InitializeLog() is called are written to STDERR\n")
    os.write(2, b"another\n")
  assert capfd.readouterr().err == "a failure\nanother\n"


@pytest.mark.slow
@needs_keras_3
def test_keras_3_in_place_of_tf_keras_is_said_in_one_line():
  code, lines, errors = run(
    "import tensorflow as tf; tf.keras.Model\n"
    "import tff_shift as ts\n"
    "try:\n"
    "  ts.build_model\n"
    "  ts.from_keras\n"
    "except ImportError as error:\n"
    "  print(error)\n",
    env={k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"},
  )
  assert code == 0, errors
  assert lines == [
    "tff_shift: tf.keras is Keras 3 here; import tff_shift before tf.keras is"
    " used, or set TF_USE_LEGACY_KERAS=1 before Python starts"
  ]
