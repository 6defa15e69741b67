"""Tests of `ts.Adapter` of the folder of a saved model."""

import numpy as np
import pandas
import pytest
import tensorflow as tf

import tff_shift as ts
from tests.fixtures import trees
from tests.fixtures.arrays import assert_equal
from tests.fixtures.refusals import refused
from tests.serving import adapter_test
from tff_shift.data import table
from tff_shift.models import split_model
from tff_shift.serving import deployed
from tff_shift.serving import description
from tff_shift.serving import export
from tff_shift.serving import naming

pytestmark = pytest.mark.usefixtures("context")

FEATURES = ("weight", "age", "pulse", "lab")


def deployed_model(**options):
  model = ts.build_model(
    "mlp",
    input_shape=(4,),
    num_classes=3,
    input_dtype=tf.float32,
    **{"width": 4, "head_width": 3, **options},
  )
  return split_model.with_weights(
    model, naming.by_name(model.initial_weights([3, 1]), model)
  )


def save_run(algorithm, folder, **options):
  """Runs and saves as `experiments.online_adaptation` does."""
  saved = {}

  class Saves(ts.Callback):
    def on_end(self, running):
      saved["running"] = running

  run = ts.run_online_adaptation(
    algorithm,
    adapter_test.Streams(),
    adapter_test.DEPLOYMENT,
    run_seed=5,
    callbacks=[Saves()],
  )
  running = saved["running"]
  export.export(
    algorithm,
    running.server_state,
    running.states,
    running.data,
    folder,
    **options,
  )
  return run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """A run of a deployed model, and its folder with the deployment."""
  folder = tmp_path_factory.mktemp("run") / "model"
  algorithm = adapter_test.build(model=deployed_model())
  run = save_run(
    algorithm,
    folder,
    with_deployment=True,
    clients=[0, 2],
    schema=table.Schema(
      clients=adapter_test.NAMES,
      features=FEATURES,
      label="outcome",
      client="site",
      time="day",
    ),
  )
  return run, folder


def adapt_all(adapter):
  for timestep in range(1, adapter_test.NUM_STEPS + 1):
    batches = adapter_test.by_name(timestep)
    adapter.adapt(batches)
  return adapter._rounds


@pytest.mark.slow
def test_folder_starts_where_its_run_started(saved, tmp_path):
  run, folder = saved
  adapter = ts.Adapter(
    folder, None, tmp_path, client_names=adapter_test.NAMES, seed=5
  )
  running = adapt_all(adapter)
  trees.assert_equal(running.server_state, run.server_state)
  trees.assert_equal(running.client_states, list(run.client_states))


@pytest.mark.slow
def test_frames_may_have_the_columns_of_the_run(saved, tmp_path):
  _, folder = saved
  x = adapter_test.draw(6, 1).x
  frame = pandas.DataFrame(x, columns=FEATURES).assign(site="west", day=4)
  # The names of the model, also for labelled examples without names.
  given = adapter_test.DEPLOYMENT
  assert given.feature_names is None
  with ts.Adapter(
    folder, given, tmp_path, client_names=adapter_test.NAMES
  ) as adapter:
    assert_equal(
      adapter.predict("west", frame[frame.columns[::-1]]).probabilities,
      adapter.predict("west", x).probabilities,
    )
    with refused("'west': column 'id' is unknown to the model"):
      adapter.adapt({"west": frame.assign(id=1)})


@pytest.mark.slow
def test_deployment_is_that_of_the_run(saved):
  _, folder = saved
  found = deployed.deployment(folder)
  assert_equal(found.confusion, adapter_test.DEPLOYMENT.confusion)
  for one, other in zip(
    found.initial, adapter_test.DEPLOYMENT.initial, strict=True
  ):
    trees.assert_equal(tuple(one), tuple(other))
  assert found.client_names == adapter_test.NAMES
  assert found.feature_names == FEATURES
  described = description.read(folder)
  assert described.client_names == ("north", "west")
  assert described.schema.features == FEATURES


def test_other_algorithm_starts_from_the_model_of_a_folder(saved):
  _, folder = saved
  found, wanted = ts.load_model(folder), deployed_model()
  assert found.origin == wanted.origin
  trees.assert_equal(
    found.initial_weights([8, 8]), wanted.initial_weights([9, 9])
  )


@pytest.mark.slow
def test_scaling_and_normalisation_are_built_again(saved, tmp_path):
  model = ts.build_model(
    "residual_cnn",
    input_shape=(8, 8, 1),
    num_classes=3,
    width=8,
    input_scaling=ts.models.input_scaling.InputScaling((0.5,), (0.25,)),
  )
  model = ts.models.with_batch_normalization(model)
  _, folder = saved
  change(
    folder,
    tmp_path,
    model="residual_cnn",
    input_shape=(8, 8, 1),
    input_dtype="uint8",
    schema=table.Schema(),
    function=deployed.fingerprint.function_digest(model),
    network=deployed.network(model),
  )
  drawn = model.initial_weights([3, 1])
  np.savez(
    tmp_path / description.WEIGHTS_FILE,
    **naming.by_name(drawn, model),
    **model.statistics,
  )
  found = ts.load_model(tmp_path)
  assert found.input_scaling == model.input_scaling
  x = np.arange(128, dtype=np.uint8).reshape(2, 8, 8, 1)
  assert_equal(
    found.predict(found.initial_weights([0, 0]), x), model.predict(drawn, x)
  )


def change(folder, tmp_path, **fields):
  """Copies a folder with another description, without its deployment."""
  described = description.read(folder)
  values = dict(np.load(folder / description.WEIGHTS_FILE))
  description.write(tmp_path, described.replace(**fields))
  np.savez(tmp_path / description.WEIGHTS_FILE, **values)
  return tmp_path


@pytest.mark.slow
def test_what_a_folder_lacks_is_named(saved, tmp_path):
  _, folder = saved
  with pytest.raises(FileNotFoundError, match="holds no saved model"):
    ts.Adapter(tmp_path / "none", None, tmp_path)
  without = change(folder, tmp_path)
  with refused("a confusion matrix and labelled ex"):
    ts.Adapter(without, None, tmp_path / "state")
  # A server of Fed-ADE has the backbone.
  with refused(r"has no 'head/.*--save_deployment"):
    ts.Adapter(without, adapter_test.DEPLOYMENT, tmp_path / "state")
  change(folder, tmp_path, network=None)
  with refused(r"does not say how to build .* model="):
    ts.load_model(tmp_path)
  with refused("another network than the saved one"):
    ts.load_model(folder, deployed_model(width=5))
  change(folder, tmp_path, function="0" * 64)
  with refused("this version builds another network"):
    ts.load_model(tmp_path)
  change(folder, tmp_path, algorithm="fed_avg")
  with refused("no algorithm of online_adapt"):
    ts.Adapter(tmp_path, adapter_test.DEPLOYMENT, tmp_path / "state")
  with refused("allowed only if algorithm is the fold"):
    ts.Adapter(adapter_test.build(), None, tmp_path / "state")


def test_damaged_deployment_is_refused(saved, tmp_path):
  _, folder = saved
  change(folder, tmp_path)
  arrays = dict(np.load(folder / description.DEPLOYMENT_FILE))
  del arrays["y/1"]
  np.savez(tmp_path / description.DEPLOYMENT_FILE, **arrays)
  with refused("is damaged: it has no 'y/1'"):
    deployed.deployment(tmp_path)
  (tmp_path / description.DEPLOYMENT_FILE).write_bytes(b"PK")
  with refused(r"deployment\.npz"):
    deployed.deployment(tmp_path)


@pytest.mark.slow
def test_drawn_weights_are_no_deployed_model(tmp_path):
  with refused("initial weights of 'mlp' are drawn"):
    save_run(adapter_test.build(), tmp_path / "m", with_deployment=True)
  assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_keras_model_is_given_with_the_folder(tmp_path):
  model = adapter_test.normalized_model()
  algorithm = adapter_test.build("tent", model)
  run = save_run(algorithm, tmp_path / "model", with_deployment=True)
  assert description.read(tmp_path / "model").network is None
  adapter = ts.Adapter(
    tmp_path / "model",
    None,
    tmp_path / "state",
    model=model,
    client_names=adapter_test.NAMES,
    seed=5,
  )
  states = adapt_all(adapter).client_states
  trees.assert_equal(states, list(run.client_states))
