"""The binary `experiments.online_adaptation`, run whole."""

import numpy as np
import pytest

import tff_shift as ts
from benchmarks import resume
from tests.fixtures import trees
from tff_shift.data import dataset as dataset_lib
from tff_shift.data import datasets
from tff_shift.data import examples
from tff_shift.data.images import corruptions
from tff_shift.data.shifts import online_adaptation as online_adaptation_data
from tff_shift.learning import evaluation
from tff_shift.scenarios.online_adaptation import configuration
from tff_shift.scenarios.online_adaptation import rate_controls
from tff_shift.serving import naming

# The contract runs over all of them; here are those that differ in what they
# leave.
_ALGORITHMS = ("fed_ade", "fix_lr", "source")
_WITHOUT_EPOCHS = """
  --dataset=digits --model=mlp --timesteps=3 --num_clients=3
  --samples_per_step=10 --initial_examples=20 --pretraining_epochs=1
  --max_pretraining_examples=200 --model_width=4 --noprogress
"""
_SMALL = f"{_WITHOUT_EPOCHS} --local_epochs=1"
_CORRUPTED = "--algorithm=fed_ade --shift_kind=covariate"


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
  return f"--cache_dir={tmp_path_factory.mktemp('cache')}"


@pytest.mark.slow
class TestWholeRun:
  @pytest.fixture(scope="class")
  def finished(self, run_once, cache_dir):
    return run_once(
      *("online_adaptation", _SMALL, f"--algorithm={','.join(_ALGORITHMS)}"),
      "--seeds=0,1 --shift=square --learning_rate=1e-1 --eta_min=0.01",
      *("--use_uncertainty=true,false --eta_max=1", cache_dir),
      errors="",
    )

  def test_rows_are_those_of_every_run_and_step(self, finished):
    rows = finished.rows
    settings = ["fed_ade,,True", "fed_ade,,False", "fix_lr,0.1,", "source,,"]
    columns = (
      *("algorithm", "learning_rate", "use_uncertainty", "shift", "seed"),
      "timestep",
    )
    assert [",".join(map(row.get, columns)) for row in rows] == [
      f"{setting},square,{seed},{step}"
      for setting in settings
      for seed in "01"
      for step in "123"
    ]
    assert [float(r["omega"]) for r in rows[:3]] == [1, 0, 1]

  def test_summary_is_the_mean_over_steps(self, finished):
    frame = finished.frame
    is_on = frame["use_uncertainty"].map(str)
    settings = frame.groupby(["algorithm", is_on, "seed"])
    assert (settings.size() == 3).all()
    means = settings[["accuracy", "accuracy_before"]].mean()
    for run in finished.runs:
      name, metrics = run["algorithm"], run["metrics"]
      is_on = str(run["setting"].get("use_uncertainty", np.nan))
      expected = means.xs((name, is_on))
      for column, metric in (
        ("accuracy", "accuracy"),
        ("accuracy_before", "before_adaptation_accuracy"),
      ):
        seeds = metrics[metric]["seeds"]
        assert seeds == pytest.approx(expected[column].tolist())
      for kind in ("cumulative", "step"):
        found = f"{kind}_shift_correlation" in metrics
        assert found == (name == "fed_ade")

  def test_figures_are_there(self, finished):
    # What is compared is told apart.
    compared = [f"fed_ade_use_uncertainty_{is_on}" for is_on in (True, False)]
    assert finished.figures == {
      "accuracy_square",
      "clients_square",
      *(
        f"{kind}_{label}"
        for kind in (
          *("learning_rates_square", "class_estimates_square"),
          "measured_shift",
        )
        for label in compared
      ),
    }


@pytest.mark.long
class TestControls:
  # Two rounds a step, in which two of three clients take part.
  _CONTROLLED = f"""{_SMALL}
    --algorithm=source,fed_ade --controls --rounds_per_step=2
    --participation=0.7 --shift=square --eta_min=0.01 --eta_max=1
    --checkpoint_every=2
  """
  _NAMES = ("fed_ade", *rate_controls.NAMES)

  @pytest.fixture(scope="class")
  def finished(self, run_once, cache_dir):
    given = "online_adaptation", self._CONTROLLED, cache_dir
    return run_once(*given, errors="")

  def test_they_stand_where_fed_ade_stands(self, finished):
    assert [(r["algorithm"], r["timestep"]) for r in finished.rows] == [
      (name, step) for name in ("source", *self._NAMES) for step in "123"
    ]
    _, *runs = finished.runs
    assert [run["algorithm"] for run in runs] == list(self._NAMES)
    assert [run["setting"] for run in runs] == [runs[0]["setting"]] * 3
    # Names, rule, a row for each, and the results.
    lines = finished.output.splitlines()[-5:-1]
    assert [line.split()[0] for line in lines] == ["source", *self._NAMES]

  def test_stopped_within_a_control_ends_the_same(
    self, finished, cache_dir, run, stopped_at
  ):
    given = "online_adaptation", self._CONTROLLED, cache_dir
    with stopped_at(algorithm="fed_ade_shuffled", timestep=3):
      folder = run(*given, code=130).folder
    assert resume.num_rows(folder) == 11
    run(*given, "--resume")
    assert resume.differences(finished.folder, folder) == []


@pytest.mark.long
def test_folder_with_its_deployment_adapts_as_its_run(
  cache_dir, run, planned, tmp_path
):
  flags = "--algorithm=fed_ade --shift=square --save_model --save_deployment"
  arguments = _SMALL, flags, cache_dir
  run("online_adaptation", *arguments)
  (folder,) = (each.parent for each in tmp_path.rglob("model.json"))
  streams = configuration.client_streams(
    planned("online_adaptation", arguments), "square", 0
  )
  with ts.execution.use("in_process"):
    adapter = ts.Adapter(folder, None, tmp_path / "state")
    for timestep in range(1, streams.num_timesteps + 1):
      adapter.adapt(
        {client: streams.batch(client, timestep).x for client in range(3)}
      )
    weights = adapter._rounds.server_state.weights
    model = adapter._algorithm.model
  with np.load(folder / "weights.npz") as saved:
    trees.assert_equal(dict(saved), dict(naming.by_name(weights, model)))


@pytest.mark.long
def test_covariate_shift_corrupts_and_keeps_classes_even(
  cache_dir, run, drawn_figures, monkeypatch
):
  corrupt, names = corruptions.corrupt, []

  def noting(images, name, *arguments):
    names.append(name)
    return corrupt(images, name, *arguments)

  monkeypatch.setattr(corruptions, "corrupt", noting)
  with drawn_figures("corruptions"):
    ended = run(
      *("online_adaptation", _WITHOUT_EPOCHS, _CORRUPTED, cache_dir),
      "--local_steps=2",
    )
  # Of the figure and of the streams, whose last step has a severity.
  assert len(names) > 6 * len(corruptions.names())
  assert len(ended.rows) == 3
  (summary,) = ended.runs
  figure = ended.folder / "figures" / "corruptions.png"
  assert figure.stat().st_size > 1000
  # Who asks for steps does not get the epochs of the default on top.
  assert summary["setting"]["local_steps"] == 2
  assert summary["setting"]["local_epochs"] == 0
  # The severity of all clients moves alike: there is nothing to rank by what
  # was measured.
  assert "measured_shift" in ended.figures
  assert {
    f"{when}{name}"
    for name in evaluation.METRICS
    for when in ("", "before_adaptation_")
  } <= set(summary["metrics"])
  assert not [name for name in summary["metrics"] if "correlation" in name]


@pytest.mark.long
def test_program_of_the_authors_runs_whole(cache_dir, run):
  """With the same cohorts at each step, and weights of each client."""
  flags = """
    --algorithm=fed_ade --variant=program --controls --schedules=program
    --shift=bernoulli --timesteps=9 --rounds_per_step=2 --participation=0.3
    --repeat_cohorts --eta_min=0.01 --eta_max=1 --seeds=3
    --running_statistics=fixed
  """
  ended = run("online_adaptation", _SMALL, flags, cache_dir, errors="")
  rows = ended.rows
  assert [row["algorithm"] for row in rows] == [
    name for name in ("fed_ade", *rate_controls.NAMES) for _ in range(9)
  ]
  thirds = {round(3 * float(row["omega"]), 6) for row in rows}
  assert thirds <= {0, 1, 2, 3} and thirds & {1, 2}
  # Of two rounds with one of three clients each, the first rate is recorded for
  # the others, and all others in each step.
  counts = rate_controls.num_rounds(
    np.ones([9, 3], bool),
    run_seed=3,
    rounds_per_step=2,
    participation=0.3,
    repeats_cohorts=True,
  )
  assert (counts == counts[0]).all() and (counts[0] == 0).any()
  constant = {
    row["mean_learning_rate"]
    for row in rows
    if row["algorithm"] == "fix_lr_mean"
  }
  assert len(constant) == 1
  # No label distribution is estimated.
  assert ended.figures == {
    *("accuracy_bernoulli", "learning_rates_bernoulli", "clients_bernoulli")
  }


def test_streams_are_drawn_as_the_flags_tell(make_plan):
  plan = make_plan("""
    --algorithm=fed_ade --shift_kind=covariate --schedules=program
    --shift=bernoulli,square --severities=one_to_five
    --corruption_set=benchmark --num_clients=20 --seeds=1
  """)
  assert plan.settings["schedules"] == "program"
  found = configuration.client_streams(plan, "bernoulli", 1)
  assert found.omega.shape == (20, 4)
  assert len(np.unique(found.omega, axis=0)) > 1
  assert {found.severity(1, client) for client in range(20)} == {1}
  assert {found.severity(3, client) for client in range(20)} == {1, 5}
  assert len(set(found.corruption_names)) == 15
  found = configuration.client_streams(plan, "square", 1)
  # Three steps of the program: N = 2, with phases of one step.
  np.testing.assert_array_equal(found.omega, [0, 0, 1, 0])


def test_more_steps_change_each_clients_weights(make_plan):
  flags = "--algorithm=fed_ade --schedules=program --shift=bernoulli"
  plan = make_plan(flags, "--num_clients=30")
  assert "--shift=bernoulli depends on it" in plan.what_follows(2)


@pytest.fixture
def make_plan(planned, tmp_path):
  """Returns `make(*flags)`, which gives the plan of a small run."""
  cache = f"--cache_dir={tmp_path / 'cache'}"
  return lambda *flags: planned("online_adaptation", [_SMALL, *flags, cache])


@pytest.mark.parametrize(
  "flag, values",
  [
    ("--nouse_uncertainty", [False]),
    ("--use_uncertainty=true,false", [True, False]),
  ],
)
def test_what_is_on_or_off_may_be_compared(flag, values, make_plan):
  source, *trials = make_plan("--algorithm=source,fed_ade", flag).trials
  assert source.algorithm == "source"
  assert [each.hparams.use_uncertainty for each in trials] == values
  assert [each.compared.get("use_uncertainty") for each in trials] == (
    values if values[1:] else [None]
  )


def test_run_that_is_refused_for_its_folder_makes_no_cache(tmp_path, refused):
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "notes.txt").write_text("mine")
  flags = f"--algorithm=fed_ade --cache_dir={tmp_path / 'cache'}"
  assert "already holds files" in refused("online_adaptation", [_SMALL, flags])


def test_one_part_of_an_archive_that_is_missing_is_refused(
  tmp_path, refused, monkeypatch
):
  """A set of digits stands in for the archive and for what it lacks."""
  source = datasets.load("digits")
  # The corruptions of the three clients with each of the two seeds.
  first, second = (
    online_adaptation_data.Streams(
      examples.Examples(np.zeros((2, 1)), np.arange(2)),
      *(2, np.arange(2)),
      num_clients=3,
      samples_per_step=1,
      shift_kind="covariate",
      seed=seed,
    ).corruption_names
    for seed in (0, 1)
  )
  # The weights of 3 steps: linear 1/3, 2/3, 1, square 1, 0, 1; 5 times that,
  # rounded, is severity 2, 3, 5 and 5, 0, 5. Only the last client of the second
  # seed on the second schedule needs this part.
  missing = second[2], 3
  assert missing[0] not in (*first, *second[:2])

  def read(*part):
    if part == missing:
      raise dataset_lib.DatasetNotFoundError(f"{part} is missing")
    return examples.Examples(source.x, source.y)

  monkeypatch.setattr(online_adaptation_data, "archive_of", lambda *_: read)
  flags = f"""
    --shift=square,linear --timesteps=3 --seeds=0,1 --corrupted_images=archive
    --cache_dir={tmp_path / "cache"}
  """
  assert refused("online_adaptation", [_SMALL, _CORRUPTED, flags]) == (
    f"online_adaptation: {missing} is missing\n"
  )
