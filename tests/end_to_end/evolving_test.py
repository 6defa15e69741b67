"""The binary `experiments.evolving`, run whole."""

import json

import numpy as np
import pytest

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
def finished(run_once, drawn_figures):
  """A run of all algorithms."""
  with drawn_figures(*_FIGURES):
    return run_once(
      *("evolving", _SMALL, f"--algorithm={','.join(_ALGORITHMS)} --seeds=0,1"),
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
        seeds = metric["seeds"]
        assert len(seeds) == 2 and all(0 <= value <= 100 for value in seeds)

  def test_metrics_have_a_row_per_evaluation(self, finished):
    columns = "algorithm", "seed", "round"
    assert [",".join(map(row.get, columns)) for row in finished.rows] == [
      f"{name},{seed},{num}"
      for name in _ALGORITHMS
      for seed in "01"
      for num in "12"
    ]
    assert (finished.frame["train_loss"] > 0).all()

  def test_summary_has_the_last_evaluation_and_the_mean_of_the_last(
    self, finished
  ):
    accuracies = finished.frame.groupby(["algorithm", "seed"])[
      "client_accuracy"
    ]
    for run in finished.runs:
      # Two are fewer than three.
      assert run["setting"]["mean_of_last"] == 3
      name, metrics = run["algorithm"], run["metrics"]
      means, last = (
        values.xs(name).tolist()
        for values in (accuracies.mean(), accuracies.last())
      )
      seeds = metrics["mean_of_last_client_accuracy"]["seeds"]
      assert seeds == pytest.approx(means)
      assert metrics["client_accuracy"]["seeds"] == last
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
    given = "evolving", _SMALL, flags
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
  given = "evolving", _SMALL, flags
  refused = run(*given, "--executor=local", code=2)
  message = "batch_clients is a setting of the executor in_process"
  assert message in refused.errors
  ended = run(*given)
  rows, expected = (
    each.frame.query("algorithm == 'fed_evp' and seed == 0")
    for each in (ended, finished)
  )
  assert len(rows) == 2
  names = ["train_loss", "client_accuracy"]
  np.testing.assert_allclose(rows[names], expected[names], rtol=1e-4)
  config = ended.config
  assert config["batch_memory"] > 2**20
  # As if it had begun on a smaller machine.
  config["batch_memory"] = 2**24
  # And with the other form of convolutions.
  forms = {"groups", "patches"} - {config["batch_convolutions"]}
  config["batch_convolutions"] = forms.pop()
  (ended.folder / "config.json").write_text(json.dumps(config))
  resumed = run(*given, "--rounds=3 --resume")
  assert resumed.config["batch_memory"] == 2**24
  warning = "batch_convolutions differ from the earlier run; results may"
  assert warning in resumed.errors


@pytest.mark.long
def test_selection_runs_each_setting_and_keeps_the_best(run):
  ended = run(
    *("evolving", _SMALL, "--algorithm=local --local_steps=1,2"),
    "--rounds=4 --select=last_source --all_settings",
  )
  rows = ended.frame
  scores = (
    rows[rows["held_out"] == "last_source"]
    .groupby("local_steps")["client_accuracy"]
    .last()
  )
  # The first one wins a draw.
  assert scores.index.tolist() == [1, 2]
  best = scores.idxmax()
  spent = {run["setting"]["local_steps"]: run for run in ended.runs}
  assert {
    steps: run["setting"]["selection"] == "last_source"
    for steps, run in spent.items()
  } == {steps: steps == best for steps in (1, 2)}
  # One and two iterations of each domain. Local training sends reports alone.
  assert spent[2]["gradients"] == 2 * spent[1]["gradients"] > 0
  assert spent[1]["bytes_up"] == spent[2]["bytes_up"] == 24
  # The others are run where all are asked for.
  assert {*rows[rows["held_out"] == "target"]["local_steps"]} == {1, 2}
  assert f"chosen: local, local steps {best}\n" in ended.output


def test_combinations_are_of_what_an_algorithm_has(planned):
  flags = "--algorithm=fed_avg,fed_rep --optimizer=adam,sgd --head_steps=1,2"
  found = planned("evolving", flags, lambda: trials.chosen("evolving"))
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
