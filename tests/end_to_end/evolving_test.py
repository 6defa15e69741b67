"""The binary `experiments.evolving`, run whole."""

import json
import math

import pytest

from tff_shift.binaries import evolving
from tff_shift.command_line.tuning import trials

# The contract runs over all of them; here are those that differ in what they
# leave.
_ALGORITHMS = ("fed_avg", "fed_evp", "fed_rep")
_FIGURES = (
  *("domains", "client_accuracy", "server_accuracy", "clients"),
  "accuracy_per_domain",
)
_SMALL = """
  --dataset=circle --num_domains=4 --max_examples_per_domain=90 --num_clients=3
  --rounds=2 --local_steps=1 --evaluate_every=1 --optimizer=adam
  --learning_rate=1e-3 --noprogress
"""


@pytest.fixture(scope="module")
def finished(run_in, drawn_figures, tmp_path_factory):
  """A run of all algorithms."""
  with drawn_figures(*_FIGURES):
    return run_in(
      tmp_path_factory.mktemp("runs") / "all",
      *(evolving, _SMALL, f"--algorithm={','.join(_ALGORITHMS)} --seeds=0,1"),
      errors="",
    )


@pytest.mark.slow
class TestWholeRun:
  def test_summary_has_an_entry_per_algorithm(self, finished):
    assert [run["algorithm"] for run in finished.runs] == list(_ALGORITHMS)
    for run in finished.runs:
      # All methods here train, and send at least an update of 4 bytes.
      assert run["gradients"] > 0 and run["bytes_down"] > 4 < run["bytes_up"]
      assert set(run["lower_is_better"]) <= set(run["metrics"])
      assert "client_accuracy" not in run["lower_is_better"]
      expected = {"num_diverged": [0, 0], "dataset": "circle", "rounds": 2}
      assert expected.items() <= run.items()
      assert run["setting"]["dirichlet"] == "inf"
      assert run["setting"]["num_domains"] == 4
      has_server = run["algorithm"] not in ("fed_rep", "flute", "local")
      assert ("server_accuracy" in run["metrics"]) == has_server
      for metric in run["metrics"].values():
        assert len(metric["seeds"]) == 2
        assert all(0 <= value <= 100 for value in metric["seeds"])
        mean = sum(metric["seeds"]) / 2
        assert metric["mean"] == pytest.approx(mean)
        assert metric["std"] == pytest.approx(
          math.sqrt(sum((v - mean) ** 2 for v in metric["seeds"]))
        )

  def test_metrics_have_a_row_per_evaluation(self, finished):
    rows = finished.rows
    assert [(row["algorithm"], row["seed"], row["round"]) for row in rows] == [
      (name, seed, num) for name in _ALGORITHMS for seed in "01" for num in "12"
    ]
    assert all(float(row["train_loss"]) > 0 for row in rows)

  def test_summary_has_the_last_evaluation_and_the_mean_of_the_last(
    self, finished
  ):
    for run in finished.runs:
      # Two are fewer than three.
      assert run["setting"]["mean_of_last"] == 3
      for seed, mean in enumerate(
        run["metrics"]["mean_of_last_client_accuracy"]["seeds"]
      ):
        first, last = (
          float(row["client_accuracy"])
          for row in finished.rows
          if (row["algorithm"], row["seed"]) == (run["algorithm"], str(seed))
        )
        assert mean == pytest.approx((first + last) / 2)
        assert last == run["metrics"]["client_accuracy"]["seeds"][seed]
    assert (
      "server accuracy, mean of the last evaluations (%)"
      in finished.output.splitlines()[1]
    )

  def test_configuration_and_figures_are_there(self, finished):
    assert finished.config["flags"]["num_clients"] == 3
    versions = finished.config["versions"]
    assert versions["tensorflow_federated"] == "0.87.0"
    for figure in _FIGURES:
      path = finished.folder / "figures" / f"{figure}.png"
      assert path.stat().st_size > 1000
    events = list((finished.folder / "tensorboard").rglob("events*"))
    assert len(events) == 2 * len(_ALGORITHMS)

  def test_same_flags_give_the_same_bits(self, finished, tmp_path, run):
    """Into a folder that is not overwritten silently."""
    (tmp_path / "metrics.csv").write_text("precious\n")
    flags = "--algorithm=fed_evp --seeds=0,1 --max_concurrent_clients=1"
    given = evolving, _SMALL, flags
    assert "--overwrite" in run(*given, folder=".", code=2).errors
    assert (tmp_path / "metrics.csv").read_text() == "precious\n"
    ended = run(*given, "--overwrite", folder=".")
    (first,) = [r for r in finished.runs if r["algorithm"] == "fed_evp"]
    # Without FedAvg in the table, nobody knows whom it harms.
    harmed = "harmed_share_against_fed_avg"
    del first["metrics"][harmed]
    first["lower_is_better"].remove(harmed)
    assert ended.runs == [first]


@pytest.mark.slow
def test_batches_of_clients_give_the_same_rows(finished, run):
  flags = "--algorithm=fed_evp --seeds=0 --batch_clients=true"
  given = evolving, _SMALL, flags
  refused = run(*given, "--executor=local", code=2)
  message = "batch_clients is a setting of the executor in_process"
  assert message in refused.errors
  ended = run(*given)
  rows = ended.rows
  expected = [
    row
    for row in finished.rows
    if (row["algorithm"], row["seed"]) == ("fed_evp", "0")
  ]
  assert len(rows) == len(expected) == 2
  for row, other in zip(rows, expected, strict=True):
    for name in ("train_loss", "client_accuracy"):
      assert float(row[name]) == pytest.approx(float(other[name]), rel=1e-4)
  config = ended.config
  assert config["batch_memory"] > 2**20
  # As if it had begun on a smaller machine.
  config["batch_memory"] = 2**24
  # And with the other form of convolutions.
  forms = ["groups", "patches"]
  forms.remove(config["batch_convolutions"])
  config["batch_convolutions"] = forms[0]
  (ended.folder / "config.json").write_text(json.dumps(config))
  resumed = run(*given, "--rounds=3 --resume")
  assert resumed.config["batch_memory"] == 2**24
  warning = "batch_convolutions differ from the earlier run; results may"
  assert warning in resumed.errors


@pytest.mark.long
def test_selection_runs_each_setting_and_keeps_the_best(run):
  name, labels = "local_steps", ("1", "2")
  ended = run(
    *(evolving, _SMALL, f"--algorithm=local --{name}={','.join(labels)}"),
    "--rounds=4 --select=last_source --all_settings",
  )
  rows = ended.rows
  scores = {
    label: float(row["client_accuracy"])
    for label in labels
    for row in rows
    if row["held_out"] == "last_source" and row[name] == label
  }
  assert len(scores) == 2
  # The first one wins a draw.
  best = max(labels, key=scores.get)
  is_chosen = {
    str(run["setting"][name]): run["setting"]["selection"] == "last_source"
    for run in ended.runs
  }
  # One and two iterations of each domain. Local training sends reports alone.
  spent = {run["setting"][name]: run for run in ended.runs}
  assert spent[2]["gradients"] == 2 * spent[1]["gradients"] > 0
  assert spent[1]["bytes_up"] == spent[2]["bytes_up"] == 24
  # The others are run where all are asked for.
  assert is_chosen == {label: label == best for label in labels}
  assert {
    row[name] for row in rows if row["held_out"] == "target"
  } == is_chosen.keys()
  chosen = f"chosen: local, {name.replace('_', ' ')} {float(best):g}\n"
  assert chosen in ended.output


def test_combinations_are_of_what_an_algorithm_has(planned):
  flags = "--algorithm=fed_avg,fed_rep --optimizer=adam,sgd --head_steps=1,2"
  found = planned(evolving, flags, lambda: trials.chosen("evolving"))
  # What fed_avg lacks does not multiply it.
  optimizers = [("optimizer", name) for name in ("adam", "sgd")]
  assert [(each.algorithm, *each.compared.items()) for each in found] == [
    *[("fed_avg", optimizer) for optimizer in optimizers],
    *[
      ("fed_rep", optimizer, ("head_steps", steps))
      for optimizer in optimizers
      for steps in (1, 2)
    ],
  ]
