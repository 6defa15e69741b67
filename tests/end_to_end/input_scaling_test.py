"""The flags of what is done to pixels, in every binary."""

import json

import numpy as np
import pandas
import pytest

import tff_shift
from tests.fixtures.arrays import normal
from tff_shift.binaries import dynamic_personalization
from tff_shift.binaries import evolving
from tff_shift.binaries import guidance
from tff_shift.binaries import online_adaptation
from tff_shift.command_line import common_flags
from tff_shift.models import input_scaling
from tff_shift.scenarios.evolving import runs as evolving_runs
from tff_shift.scenarios.guidance import runs as guidance_runs

pytestmark = pytest.mark.slow

_GUIDANCE = """
  --dataset=digits --model=mlp --model_width=4 --algorithm=fed_avg
  --max_examples=200 --num_clients=3 --noprogress
"""
_PLANS = {
  evolving: """
    --algorithm=fed_avg --model=mlp --dataset=rotated_digits --num_domains=3
    --num_clients=2
  """,
  guidance: _GUIDANCE,
  online_adaptation: """
    --algorithm=source --dataset=digits --model=mlp --num_clients=2
    --timesteps=2
  """,
  dynamic_personalization: """
    --algorithm=local --dataset=digits --max_examples=600 --num_clients=2
    --period_size=20 --distance_threshold=1 --distance_features=extractor
    --test_distributions=iid
  """,
}
# That of each paper, where it says one.
_DEFAULTS = {
  evolving: "zero_one",
  guidance: "minus_one_one",
  online_adaptation: "standardized",
  dynamic_personalization: "zero_one",
}


def training_images(plan):
  """The images that the flags of `_PLANS` train on, with the first seed."""
  if hasattr(plan, "extractor"):
    return plan.dataset.train.x
  if hasattr(plan, "dataset"):
    return plan.dataset.pretraining.x
  if hasattr(plan, "targets"):
    clients = plan.targets[plan.seeds[0]][-1].clients
    return np.concatenate([client.train.x for client in clients])
  dataset = plan.datasets[plan.seeds[0]]
  return np.concatenate([each.x for each in dataset.train])


@pytest.fixture
def make_plan(planned, tmp_path, monkeypatch):
  """Returns `make(binary, *flags)`: plan, training images."""
  # There may be a folder of a cache.
  monkeypatch.chdir(tmp_path)

  def make(binary, *flags):
    def ask():
      plan = binary.planning.make_plan()
      return plan, training_images(plan)

    return planned(binary, [_PLANS[binary], *flags], ask)

  return make


def name_of(binary):
  return binary.planning.SCENARIO


@pytest.mark.parametrize("binary", _PLANS, ids=name_of)
def test_default_is_that_of_the_paper(make_plan, binary):
  plan, images = make_plan(binary)
  name = _DEFAULTS[binary]
  assert plan.settings["input_scaling"] == name
  assert plan.model.input_scaling == input_scaling.make(name, [images])


@pytest.fixture
def table(tmp_path):
  """A file of two features in units of their own, and of a constant one."""
  rng = np.random.default_rng(0)
  y = rng.integers(0, 3, 600)
  np.savez(
    tmp_path / "table.npz",
    x=np.column_stack(
      [
        rng.normal(40, 10, 600) + 20 * y,
        rng.normal(30_000, 5_000, 600) + 25_000 * y,
        np.full(600, 0.1),
      ]
    ),
    y=y,
    domain=np.arange(600) % 3,
  )
  return tmp_path / "table.npz"


_VECTORS = {
  evolving: "",
  online_adaptation: "--initial_examples=20",
  dynamic_personalization: "--model=mlp",
}


def test_features_are_not_scaled_by_default(make_plan, table):
  plan, _ = make_plan(evolving, f"--dataset={table}")
  assert plan.model.input_scaling == input_scaling.ZERO_ONE
  assert plan.settings["input_scaling"] is None


@pytest.mark.long
def test_raw_features_train_and_a_saved_model_scales_alike(run, table):
  flags = "--algorithm=fed_avg --num_clients=2 --rounds=10 --noprogress"
  given = evolving, f"--dataset={table}", flags
  told = run(*given, "--learning_rate=9", code=3).errors
  warned, diverged = told.strip().splitlines()
  assert "features of --dataset=table are as large as" in warned
  assert "diverged" in diverged and "with features as large as" in diverged
  scaled = "--input_scaling=standardized --overwrite --save_model"
  ended = run(*given, scaled)
  assert "as large as" not in ended.errors
  assert ended.rows[0]["input_scaling"] == "standardized"
  model = tff_shift.load(ended.folder)
  with np.load(table) as arrays:
    x, y = arrays["x"], arrays["y"]
  assert np.mean(np.argmax(model.predict(x), axis=1) == y) > 0.9
  # Numbers of its own scale nothing: a model that saw raw ones would be lost.
  (path,) = ended.folder.glob("model/**/model.json")
  saved = json.loads(path.read_text())["network"]
  mean, deviation = saved["input_mean"], saved["input_deviation"]
  scaled = model.predict((x - mean) / deviation)
  assert len(set(np.argmax(scaled, axis=1).tolist())) == 1


@pytest.mark.parametrize(
  "flag", ["--input_scaling=minus_one_one", "--input_mean=1"]
)
def test_scaling_of_images_is_not_that_of_features(refused, table, flag):
  told = refused(evolving, [_PLANS[evolving], f"--dataset={table}", flag])
  assert "applies to images" in told
  assert "pass --input_scaling=standardized" in told


def test_given_numbers_count(make_plan):
  flags = "--input_scaling=standardized --input_mean=0.25,0.5,0.75"
  plan, _ = make_plan(guidance, flags, "--input_std=0.5")
  assert plan.model.input_scaling == input_scaling.InputScaling(
    (0.25, 0.5, 0.75), (0.5, 0.5, 0.5)
  )


def test_run_goes_on_with_other_seeds_but_no_other_numbers(run):
  flags = "--input_scaling=standardized --rounds=1 --batch_size=8"
  given = guidance, _GUIDANCE, flags, "--local_steps=1"
  ended = run(*given)
  recorded = ended.config["flags"]
  assert recorded["input_mean"] is recorded["input_std"] is None
  (row,) = ended.rows
  assert row["input_scaling"] == "standardized"

  def open_again():
    plan = guidance.planning.make_plan()
    common_flags.open_folder(
      guidance.planning.SCENARIO, plan.model, plan.what_follows, plan.schema
    )

  for seeds in ("0", "0,1"):
    run(*given, f"--resume --seeds={seeds}", main=open_again)
  numbers = "--resume --input_mean=0.5 --input_std=0.5"
  errors = run(*given, numbers, main=open_again, code=2).errors
  assert "--input_mean was not set and is 0.5" in errors
  assert errors.count("\n") == 1


def is_among(part, x):
  """Whether rows of x are among those of a part of it, [n]."""
  return (x[:, np.newaxis] == part).all(axis=2).any(axis=1)


_SCALED = "--input_scaling=standardized"


_X = normal(0, 400, 2)
_Y = np.arange(400) % 3
_OWNERS = {
  "domain": np.arange(400) // 100,
  "client": np.array(list("pqrs"))[np.arange(400) % 4],
}


class TestHeldOut:
  """The scaling of a run does not depend on what it holds out."""

  @pytest.fixture
  def save(self, tmp_path):
    """Returns `save(poisoned, owners) -> flag`, which scales rows by 1000."""

    def save_file(poisoned=(), owners=_OWNERS):
      x = _X.copy()
      x[poisoned, :] *= 1000
      np.savez(tmp_path / "poisoned.npz", x=x, y=_Y, **owners)
      return f"--dataset={tmp_path / 'poisoned.npz'} {_SCALED}"

    return save_file

  @pytest.fixture
  def model_of(self, planned, save):
    """Returns `model(poisoned, flags, ...)`: its scaling, and the clients."""

    def find(poisoned, flags, seed=0, is_test=True):
      def ask():
        plan = evolving.planning.make_plan()
        scenario = evolving_runs.Evolving(plan)
        data = scenario.data(seed, is_test=is_test)
        scaling = scenario.model(plan.trials[0], data).input_scaling
        return scaling, data[-1]

      given = save(poisoned), "--algorithm=fed_avg --model=mlp", flags
      return planned(evolving, given, ask)

    return find

  def test_target_and_clients_that_never_train(self, model_of):
    new = "--num_new_clients=1"
    expected, _ = model_of((), new)
    poisoned = (_OWNERS["domain"] == 3) | (_OWNERS["client"] == "s")
    scaling, clients = model_of(poisoned, new)
    assert scaling == expected
    x = np.concatenate([client.train.x for client in clients[:3]])
    np.testing.assert_allclose(scaling.deviation, x.std(axis=0))
    # They do take part without the flag.
    scaling, _ = model_of(poisoned, "")
    assert min(scaling.deviation) > 100

  def test_source_domain_that_selection_holds_out(self, model_of):
    select = "--select=last_source --learning_rate=0.1,0.2"
    poisoned = _OWNERS["domain"] >= 2
    clean, scaling = (
      model_of(rows, select, is_test=False)[0] for rows in ((), poisoned)
    )
    assert scaling == clean
    scaling, _ = model_of(poisoned, select)
    assert min(scaling.deviation) > 100

  def test_test_examples_of_a_seed(self, model_of):
    seeds = "--seeds=0,1"
    first, _ = model_of((), seeds)
    second, clients = model_of((), seeds, 1)
    assert first != second
    tested = np.concatenate([client.test.x for client in clients])
    is_tested = is_among(tested, _X)
    assert is_tested.sum() == len(tested)
    assert model_of(is_tested, seeds, 1)[0] == second
    # Another seed trains on some of them.
    assert model_of(is_tested, seeds)[0] != first

  def test_each_seed_runs_and_is_saved_with_its_own(self, run, save):
    flags = """
      --algorithm=fed_avg --model=mlp --seeds=0,1 --rounds=1 --noprogress
      --save_model
    """
    ended = run(evolving, save(), flags)
    means = [
      json.loads(path.read_text())["network"]["input_mean"]
      for path in sorted(ended.folder.glob("model/**/model.json"))
    ]
    assert len(means) == 2 and means[0] != means[1]

  @pytest.mark.parametrize("binary", _VECTORS, ids=name_of)
  def test_parts_that_do_not_train(self, make_plan, binary, save):
    has_domains = binary is evolving
    owners = {"domain": _OWNERS["domain"]} if has_domains else {}

    def plan(*poisoned):
      return make_plan(binary, _VECTORS[binary], save(*poisoned, owners=owners))

    clean, trained = plan()
    scaling = clean.model.input_scaling
    assert clean.settings["input_scaling"] == "standardized"
    # In float64: sums of float32 numbers are rounded.
    for value, expected in (
      (scaling.mean, trained.mean(axis=0, dtype=np.float64)),
      (scaling.deviation, trained.std(axis=0, dtype=np.float64)),
    ):
      np.testing.assert_allclose(value, expected, rtol=1e-9)
    if binary is dynamic_personalization:
      assert clean.extractor.input_scaling == scaling
    is_trained = is_among(trained, _X)
    assert is_trained.sum() == len(trained) < 400
    poisoned, _ = plan(~is_trained)
    assert poisoned.model.input_scaling == scaling

  @pytest.mark.parametrize("seed, is_test", [(0, True), (1, True), (0, False)])
  def test_queries_of_guidance(self, planned, save, seed, is_test):
    flags = """
      --model=mlp --algorithm=fed_avg --num_clients=2 --seeds=0,1
      --partition=dirichlet_100 --select=validation --learning_rate=0.1,0.2
    """

    def ask():
      plan = guidance.planning.make_plan()
      scenario = guidance_runs.Guidance(plan)
      data = dataset, _ = scenario.data(seed, is_test=is_test)
      return (
        scenario.model(plan.trials[0], data).input_scaling,
        np.concatenate([each.x for each in dataset.train]),
      )

    def scaling(*poisoned):
      return planned(guidance, [save(*poisoned, owners={}), flags], ask)

    expected, trained = scaling()
    assert scaling(~is_among(trained, _X))[0] == expected


def test_vocabulary_has_the_words_of_training_examples_alone(planned):
  flags = """
    --dataset=synthetic_titles --algorithm=fed_avg --num_clients=3
    --select=last_source --learning_rate=0.1,0.2 --max_examples_per_domain=40
    --num_new_clients=1
  """
  plan = planned(evolving, flags)
  (target,) = plan.targets[0]
  words = len(target.dataset.vocabulary)
  for clients in (target.clients, plan.held_out[0].clients):
    *trained, new = clients
    known = {id for client in trained for id in client.train.x.ravel()}
    # Every word of training examples is known, and no other: test examples and
    # the new client have unknown words.
    assert 1 not in known
    for x in (new.train.x, *(client.test.x for client in clients)):
      assert 1 in x and {*x.ravel()} <= {1, *known}
  # All of them; word 0 is padding and 1 is unknown.
  known = {id for client in target.clients[:2] for id in client.train.x.flat}
  assert known == {0, *range(2, words)}


@pytest.mark.long
def test_extreme_columns_and_changed_data_are_said_once(run, tmp_path):
  rng = np.random.default_rng(0)
  frame = pandas.DataFrame(rng.normal(size=(240, 2)), columns=["a", "kelvin"])
  frame["month"], frame["y"] = np.arange(240) // 60, np.arange(240) % 2
  frame.loc[frame.month == 3, "kelvin"] = 1e5
  frame.to_csv(tmp_path / "table.csv", index=False)
  ended = run(
    *(evolving, f"--dataset={tmp_path / 'table.csv'} --label=y --time=month"),
    "--algorithm=fed_avg --num_clients=2 --rounds=1 --noprogress --seeds=0,1",
    *("--max_examples_per_domain=50", _SCALED),
  )
  (line,) = ended.errors.splitlines()
  assert "scaled features" in line and "kelvin (" in line
  assert "a (" not in line
  changed = "the data are changed by --max_examples_per_domain=50\n"
  assert ended.output.startswith(changed)
