"""What the README shows runs as it stands there."""

import importlib
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from examples import control_variates
from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.algorithms import fed_avg
from tff_shift.data import examples
from tff_shift.models.networks import mlp
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.slow

_README = pathlib.Path(__file__).parents[1] / "README.md"


@pytest.fixture
def run_example(monkeypatch, capsys):
  """Returns `run(name, **fewer) -> what it prints`, with other constants."""
  monkeypatch.setattr(algorithms, "_registered", {})

  def run(name, **fewer):
    module = importlib.import_module(f"examples.{name}")
    for constant, value in fewer.items():
      monkeypatch.setattr(module, constant, value)
    module.main()
    return capsys.readouterr().out

  return run


def percentages(text):
  return [float(each) for each in re.findall(r"(\d+\.\d) ?%", text)]


@pytest.mark.long
def test_own_data_end_in_a_table(run_example):
  _, *rows = run_example("own_data", SEEDS=(0,)).splitlines()
  found = {row.split()[0]: list(map(float, row.split()[1:])) for row in rows}
  assert found.keys() == {"fed_avg", "fed_evolve", "fed_evp"}
  # The classes turn on, so that what was averaged over time comes too late.
  assert min(found["fed_evolve"]) > 90 > 60 > max(found["fed_avg"])


@pytest.mark.long
def test_model_that_is_trained_once_goes_stale(run_example):
  output = run_example("going_stale", NUM_MONTHS=5, ROUNDS=8, SEEDS=(0,))
  once, every = (
    [float(each) for each in re.findall(r"\d+\.\d", row)]
    for row in output.splitlines()
  )
  # Before the first measured month both were trained on the same months.
  assert once[0] == every[0]
  assert once[-1] < once[0] - 10
  assert once[-1] < every[-1] - 10


@pytest.mark.long
def test_own_algorithm_runs_at_its_rates(run_example):
  accuracies = percentages(run_example("own_algorithm", RATES=(0.5, 1.0)))
  assert len(set(accuracies)) == 2


@pytest.fixture(scope="module")
def control_runs(context):
  """The states of three rounds of SCAFFOLD and of FedAvg, half sampled."""
  del context
  generator = np.random.default_rng(0)
  data = client_data.training_data(
    [
      examples.Examples(
        generator.normal(client, size=(6 + client, 3)).astype(np.float32),
        generator.integers(0, 2, 6 + client).astype(np.int32),
      )
      for client in range(4)
    ],
    run_seed=0,
  )
  model = mlp.build((3,), num_classes=2, width=4, head_width=3)
  found = []
  for module in (control_variates, fed_avg):
    hparams = module.HParams(learning_rate=0.5, local_steps=3, batch_size=4)
    built = algorithms.build(module, model, hparams, num_clients=4)
    running = rounds.Rounds(built, data, run_seed=0, participation=0.5)
    states = []
    for _ in range(3):
      running.step()
      states.append((running.server_state.weights, running.client_states))
    found.append(states)
  return found


def test_control_variates_correct_all_rounds_but_the_first(control_runs):
  ((first, _), *_, (last, _)), ((expected, _), *_, (weights, _)) = control_runs
  trees.assert_equal(first.model, expected)
  assert np.any(last.model.backbone[0] != weights.backbone[0])


def test_control_variate_is_the_mean_over_all_clients(control_runs):
  for shared, controls in control_runs[0]:
    for one, other in trees.pairs(shared.control, trees.mean(*controls)):
      np.testing.assert_allclose(one, other, atol=1e-6)
    assert trees.largest(shared.control) > 0


@pytest.mark.long
def test_composition_gives_the_same_on_three_executors(run_example):
  first, *rows = run_example("compose").splitlines()
  assert first.endswith("gets int32@SERVER and float32@SERVER")
  names, found = zip(*(row.split(": ") for row in rows), strict=True)
  assert names == ("in_process", "local", "remote")
  assert len(set(found)) == 1
  assert "86 examples" in found[0] and "4 client states" in found[0]


@pytest.mark.long
def test_saved_model_is_served_as_the_page_shows_it(
  served_federation, tmp_path
):
  (tmp_path / "runs").mkdir()
  (tmp_path / "runs/federation").symlink_to(served_federation)
  page = (_README.parent / "docs/how_to/serve.md").read_text(encoding="utf-8")
  (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
  names = subprocess.run(
    [sys.executable, "-c", code],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(_README.parent)},
    capture_output=True,
    text=True,
    timeout=600,
    check=True,
  ).stdout
  assert names.startswith("tf.Tensor([b'") and "dtype=string" in names


def test_documented_algorithm_is_the_example():
  root = _README.parent
  page = (root / "docs/how_to/own_algorithm.md").read_text()
  (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
  assert (root / "examples" / "control_variates.py").read_text().endswith(shown)


@pytest.mark.long
def test_federation_answers_from_a_folder_as_before(run_example):
  output = run_example("federation_answers")
  right, own = percentages(output)
  assert right > 70
  assert own > 50
  assert output.endswith(
    "the exported federation gives the same answers: True\n"
  )


@pytest.mark.long
def test_deployed_model_adapts_and_is_taken_away(run_example):
  output = run_example("adapt_deployed_model", NUM_CLIENTS=2, TIMESTEPS=2)
  assert re.findall(r"^step (\d+):", output, re.MULTILINE) == ["1", "2"]
  *_, last = percentages(output)
  assert last > 80


def test_stock_tff_learns_in_process(run_example):
  (accuracy,) = percentages(run_example("stock_tff_on_a_gpu"))
  assert accuracy > 90


@pytest.mark.long
def test_code_of_the_readme_learns_and_prints_nothing_else():
  text = _README.read_text(encoding="utf-8")
  (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
  ended = subprocess.run(
    [sys.executable, "-c", code],
    cwd=_README.parent,
    env={k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"},
    capture_output=True,
    text=True,
    timeout=600,
    check=True,
  )
  fed_avg, fed_evolve = map(int, re.findall(r": (\d+) %", ended.stdout))
  # Ten classes: chance is 10 %.
  assert 30 < fed_avg < fed_evolve - 10
  assert ended.stderr == ""
