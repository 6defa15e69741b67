"""The binary `experiments.evolving`, run whole."""

import json
import math
import shlex

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
_SMALL = shlex.split("""
  --dataset=circle --num_domains=4 --max_examples_per_domain=90 --num_clients=3
  --rounds=2 --local_steps=1 --evaluate_every=1 --optimizer=adam
  --learning_rate=1e-3 --noprogress
""")


@pytest.fixture(scope="module")
def finished(run_whole, drawn_figures, tmp_path_factory):
  """The folder of a run of all algorithms, and what it has printed."""
  folder = tmp_path_factory.mktemp("runs") / "all"
  with drawn_figures(*_FIGURES):
    output = run_whole(
      evolving,
      [
        *_SMALL,
        *(f"--algorithm={','.join(_ALGORITHMS)}", "--seeds=0,1"),
        f"--output_dir={folder}",
      ],
    )
  return folder, output


@pytest.mark.slow
class TestWholeRun:
  def test_summary_has_an_entry_per_algorithm(self, finished):
    runs = json.loads((finished[0] / "summary.json").read_text())["runs"]
    assert [run["algorithm"] for run in runs] == list(_ALGORITHMS)
    for run in runs:
      # All methods here train, and send at least an update of 4 bytes.
      assert run["gradients"] > 0 and run["bytes_down"] > 4 < run["bytes_up"]
      assert set(run["lower_is_better"]) <= set(run["metrics"])
      assert "client_accuracy" not in run["lower_is_better"]
      assert run["num_diverged"] == [0, 0]
      assert run["dataset"] == "circle"
      assert run["rounds"] == 2
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

  def test_metrics_have_a_row_per_evaluation(self, finished, read_rows):
    rows = read_rows(finished[0])
    assert [(row["algorithm"], row["seed"], row["round"]) for row in rows] == [
      (name, seed, num) for name in _ALGORITHMS for seed in "01" for num in "12"
    ]
    assert all(float(row["train_loss"]) > 0 for row in rows)

  def test_last_row_is_the_summary(self, finished, read_rows, read_runs):
    for run in read_runs(finished[0]):
      last = [
        float(row["client_accuracy"])
        for row in read_rows(finished[0])
        if row["algorithm"] == run["algorithm"] and row["round"] == "2"
      ]
      assert last == run["metrics"]["client_accuracy"]["seeds"]

  def test_summary_and_table_have_the_mean_of_the_last_evaluations(
    self, finished, read_rows, read_runs
  ):
    folder, output = finished
    for run in read_runs(folder):
      # Two are fewer than three.
      assert run["setting"]["mean_of_last"] == 3
      for seed, mean in enumerate(
        run["metrics"]["mean_of_last_client_accuracy"]["seeds"]
      ):
        values = [
          float(row["client_accuracy"])
          for row in read_rows(folder)
          if (row["algorithm"], row["seed"]) == (run["algorithm"], str(seed))
        ]
        assert len(values) == 2
        assert mean == pytest.approx(sum(values) / 2)
    assert (
      "server accuracy, mean of the last evaluations (%)"
      in output.splitlines()[1]
    )

  def test_configuration_and_figures_are_there(self, finished):
    folder = finished[0]
    config = json.loads((folder / "config.json").read_text())
    assert config["flags"]["num_clients"] == 3
    assert config["versions"]["tensorflow_federated"] == "0.87.0"
    for figure in _FIGURES:
      assert (folder / "figures" / f"{figure}.png").stat().st_size > 1000
    events = list((folder / "tensorboard").rglob("events*"))
    assert len(events) == 2 * len(_ALGORITHMS)

  def test_same_flags_give_the_same_bits(
    self, finished, tmp_path, run_evolving, read_runs, capsys
  ):
    """Into a folder that is not overwritten silently."""
    (tmp_path / "metrics.csv").write_text("precious\n")
    arguments = [
      *_SMALL,
      *("--algorithm=fed_evp", "--seeds=0,1", "--max_concurrent_clients=1"),
      f"--output_dir={tmp_path}",
    ]
    assert run_evolving(arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (tmp_path / "metrics.csv").read_text() == "precious\n"
    assert run_evolving([*arguments, "--overwrite"]) == 0
    (first,) = [
      r for r in read_runs(finished[0]) if r["algorithm"] == "fed_evp"
    ]
    # Without FedAvg in the table, nobody knows whom it harms.
    harmed = "harmed_share_against_fed_avg"
    del first["metrics"][harmed]
    first["lower_is_better"].remove(harmed)
    assert read_runs(tmp_path) == [first]


@pytest.mark.slow
def test_batches_of_clients_give_the_same_rows(
  finished, tmp_path, run_evolving, read_rows, capsys
):
  arguments = [
    *_SMALL,
    *("--algorithm=fed_evp", "--seeds=0", "--batch_clients=true"),
    f"--output_dir={tmp_path}",
  ]
  assert run_evolving([*arguments, "--executor=local"]) == 2
  message = capsys.readouterr().err
  assert "batch_clients is a setting of the executor in_process" in message
  assert run_evolving(arguments) == 0
  rows = read_rows(tmp_path)
  expected = [
    row
    for row in read_rows(finished[0])
    if (row["algorithm"], row["seed"]) == ("fed_evp", "0")
  ]
  assert len(rows) == len(expected) == 2
  for row, other in zip(rows, expected, strict=True):
    for name in ("train_loss", "client_accuracy"):
      assert float(row[name]) == pytest.approx(float(other[name]), rel=1e-4)
  config = json.loads((tmp_path / "config.json").read_bytes())
  assert config["batch_memory"] > 2**20
  # As if it had begun on a smaller machine.
  config["batch_memory"] = 2**24
  (tmp_path / "config.json").write_text(json.dumps(config))
  assert run_evolving([*arguments, "--rounds=3", "--resume"]) == 0
  resumed = json.loads((tmp_path / "config.json").read_bytes())
  assert resumed["batch_memory"] == 2**24


@pytest.mark.long
def test_selection_runs_each_setting_and_keeps_the_best(
  tmp_path, run_evolving, read_rows, read_runs, capsys
):
  name, labels = "local_steps", ("1", "2")
  code = run_evolving(
    [
      *_SMALL,
      "--algorithm=local",
      f"--{name}={','.join(labels)}",
      *("--rounds=4", "--select=last_source", "--all_settings"),
      f"--output_dir={tmp_path}",
    ]
  )
  assert code == 0
  rows = read_rows(tmp_path)
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
    for run in read_runs(tmp_path)
  }
  # One and two iterations of each domain. Local training sends reports alone.
  spent = {run["setting"][name]: run for run in read_runs(tmp_path)}
  assert spent[2]["gradients"] == 2 * spent[1]["gradients"] > 0
  assert spent[1]["bytes_up"] == spent[2]["bytes_up"] == 24
  # The others are run where all are asked for.
  assert is_chosen == {label: label == best for label in labels}
  assert {
    row[name] for row in rows if row["held_out"] == "target"
  } == is_chosen.keys()
  assert f"chosen: local, {name.replace('_', ' ')} {float(best):g}\n" in (
    capsys.readouterr().out
  )


def test_combinations_are_of_what_an_algorithm_has(planned):
  found = planned(
    evolving,
    [
      *("--algorithm=fed_avg,fed_rep", "--optimizer=adam,sgd"),
      "--head_steps=1,2",
    ],
    lambda: trials.chosen("evolving"),
  )
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


_REFUSED = [
  ("--algorithm=fedavg", "{}", "fed_avg, fed_avg_ft"),
  ("--algorithm=", "--algorithm", "fed_avg"),
  ("--algorithm=local,local", "--algorithm", "repeated"),
  ("--learning_rate=fast", "{}", "a number above 0"),
  ("--optimizer=sgd,lion", "--optimizer='lion'", "sgd, adam, adamw"),
  ("--learning_rate=1,1", "{}", "duplicates"),
  ("--participation=0", "--participation=0.0", "at most 1"),
  ("--rounds=two", "{}", "int"),
  ("--dirichlet=0", "{}", "above 0, or inf"),
  ("--test_fraction=1", "--test_fraction=1.0", "below 1"),
  ("--seeds=0,0", "{}", "duplicates"),
  ("--selection_seeds=7", "--selection_seeds", "subset of --seeds"),
  ("--dataset=", "--dataset: it must be set, or left out"),
  ("--select=target", "{}", "last_source"),
  ("--select=last_source --num_domains=2", "--num_domains=2", "at least 3"),
  (
    "--algorithm=fed_avg,fed_evp --num_domains=2",
    "--num_domains=2",
    "fed_evp",
    "at least 3",
  ),
  (
    "--algorithm=fed_evolve --select=last_source --num_domains=3",
    "--num_domains=3",
    "fed_evolve",
    "at least 4",
  ),
  ("--distance=cosine", "--distance", "fed_evolve, fed_evp"),
  (
    "--algorithm=fed_avg,memo",
    "memo without --augmentation=none",
    "float32 [2]",
  ),
  ("--algorithm=fed_the --plus", "fed_the with --plus", "float32 [2]"),
  (
    "--algorithm=cfed --public_data=digits",
    "public_data=digits",
    "does not take images",
  ),
  (
    "--algorithm=fed_evolve --distance=l1",
    "--distance='l1'",
    "l2, squared_l2, cosine",
  ),
  ("--num_domains=1", "num_domains", "at least 2"),
  ("--num_domains=9999 --dataset=rotated_digits", "num_domains", "9999"),
  ("--num_clients=500", "client", "fewer clients"),
  ("--angle_step=10", "angle_step", "circle"),
  ("--executor=cloud", "cloud", "in_process"),
  (
    "--dataset=rotated_emnist_letters --data_dir=/nowhere",
    "/nowhere",
    "emnist",
  ),
  ("word", "'word'", "unexpected positional argument"),
  *(
    (f"--{name}=0", "{}", "at least 1")
    for name in ("rounds", "mean_of_last", "evaluate_every", "num_clients")
  ),
]


@pytest.mark.parametrize("row", _REFUSED, ids=lambda row: row[0])
def test_bad_flags_end_with_one_line_and_nothing_written(row, refused):
  arguments = [*_SMALL, "--algorithm=fed_avg", *row[0].split()]
  line = refused(evolving, arguments)
  assert all(part.format(row[0]) in line for part in row[1:]), line


def test_missing_algorithm_names_those_there_are(refused):
  assert "fed_evolve" in refused(evolving, _SMALL)
