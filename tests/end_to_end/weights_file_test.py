"""`--weights_file` in every binary: runs start from what a file holds."""

import dataclasses
import os
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import tables
from tff_shift.command_line import pretrained
from tff_shift.data import table
from tff_shift.serving import description
from tff_shift.simulation import pretraining_hparams

# So small that no weight of order 1 moves by a bit.
_STANDSTILL = 1e-12
_MODEL = textwrap.dedent(
  """
  import tensorflow as tf

  layers = tf.keras.layers


  def build(input_shape, num_classes):
    return tf.keras.Sequential(
      [
        layers.InputLayer(input_shape),
        layers.Flatten(),
        layers.Dense(3, "relu"),
        layers.Dense(num_classes, name="last"),
      ]
    )
  """
)
_STILL = f"""
  --batch_size=4 --learning_rate={_STANDSTILL} --num_clients=2 --noprogress
"""
_DIGITS = f"{_STILL} --dataset=digits --max_examples=300"
# By binary: a small run, and a file of one kind each.
_RUNS = {
  "evolving": (
    f"""{_STILL} --algorithm=fed_avg --dataset=circle --num_domains=3
    --max_examples_per_domain=12 --rounds=1 --local_steps=1""",
    "file.keras",
  ),
  "online_adaptation": (
    f"""{_STILL} --algorithm=fix_lr --local_epochs=1 --dataset=digits
    --timesteps=1 --samples_per_step=4 --initial_examples=4
    --max_pretraining_examples=40""",
    "file.h5",
  ),
  "guidance": (
    f"""{_DIGITS} --algorithm=fed_avg_ft --rounds=1 --local_steps=1
    --fine_tuning_steps=1""",
    "saved",
  ),
  "dynamic_personalization": (
    f"""{_DIGITS} --algorithm=fed_avg --rounds=1 --local_epochs=1
    --period_size=8 --periods=1 --test_distributions=iid
    --distance_threshold=inf""",
    "file.weights.h5",
  ),
}


@pytest.fixture(params=list(_RUNS))
def binary(request):
  return request.param


@pytest.fixture
def model(tmp_path):
  """The flag of a model of the user's."""
  (tmp_path / "mine.py").write_text(_MODEL)
  return f"--model={tmp_path}/mine.py:build"


@pytest.fixture
def without_pretraining(tmp_path, monkeypatch):
  """Pre-training moves no weight; its results are kept nowhere else."""
  hparams = dataclasses.replace(
    pretraining_hparams.PretrainingHParams(),
    optimizer="sgd",
    learning_rate=_STANDSTILL,
    max_epochs=1,
  )
  monkeypatch.setattr(pretrained, "chosen_hparams", lambda **_: hparams)
  monkeypatch.chdir(tmp_path)


def save(binary, path, seed=0):
  """Saves a model of random weights for a binary; returns these."""
  # Digits are coloured there.
  shapes = {"evolving": (2,), "guidance": (28, 28, 3)}
  namespace = {}
  exec(_MODEL, namespace)
  keras_model = namespace["build"](
    shapes.get(binary, (28, 28, 1)), 2 if binary == "evolving" else 10
  )
  generator = np.random.default_rng(seed)
  keras_model.set_weights(
    [generator.uniform(0.5, 1.5, w.shape) for w in keras_model.get_weights()]
  )
  if path.name.endswith(".weights.h5"):
    keras_model.save_weights(path)
  else:
    keras_model.save(path)
  return keras_model.get_weights()


@pytest.mark.long
@pytest.mark.usefixtures("without_pretraining")
def test_runs_start_from_the_file(binary, model, run, tmp_path):
  flags, name = _RUNS[binary]
  expected = save(binary, tmp_path / name)
  file = f"--weights_file={tmp_path / name} --save_model"
  folder = run(binary, flags, model, file, errors="").folder
  (path,) = (folder / "model").rglob("weights.npz")
  found = dict(np.load(path))
  if binary == "online_adaptation":
    # Of whose heads the server has none: what clients have started from.
    (path,) = (tmp_path / "runs" / "cache").glob("pretrained-*.npz")
    found = dict(np.load(path)) | found
  layers = "backbone/dense.1", "head/last"
  names = [f"{layer}/{part}" for layer in layers for part in ("kernel", "bias")]
  for key, value in zip(names, expected, strict=True):
    np.testing.assert_array_equal(found[key], value)


@pytest.mark.slow
def test_damaged_file_is_refused_before_anything_is_written(
  binary, model, refused, tmp_path
):
  path = tmp_path / "file.keras"
  save(binary, path)
  os.truncate(path, path.stat().st_size // 2)
  errors = refused(binary, [_RUNS[binary][0], model, f"--weights_file={path}"])
  assert f"weights file {str(path)!r}: it is not a .keras file" in errors


@pytest.mark.slow
def test_a_run_goes_on_with_the_file_of_its_start_alone(model, run, tmp_path):
  path = tmp_path / "file.keras"
  save("evolving", path)
  given = "evolving", _RUNS["evolving"][0], model, f"--weights_file={path}"
  run(*given, errors="")
  run(*given, "--resume --seeds=0,1", errors="")
  # Of the same name, with other weights in it.
  tf.keras.backend.clear_session()
  save("evolving", path, seed=1)
  errors = run(*given, "--resume", code=2).errors
  assert "--weights_file (SHA-256) was " in errors


@pytest.mark.parametrize(
  "named, message",
  tables.cases("""
{"classes": ("sick", "well")}
    its class_names are sick, well, and those of --dataset are well, sick;
{"features": ("dose", "age")}
    its feature_names are dose, age, and those of --dataset are age, dose;
{"classes": ("well", "sick")}
    has no weight 'backbone/a'
{"classes": ("0", "1")}
    has no weight 'backbone/a'
"""),
)
def test_names_of_a_saved_model_decide(tmp_path, refused, named, message):
  folder = tmp_path / "model"
  folder.mkdir()
  np.savez(folder / "weights.npz", **{"backbone/a": [1.0], "head/b": [1.0]})
  described = description.Description(
    **{"algorithm": "fed_avg", "hparams": {}, "model": "mlp"},
    **{"input_shape": (2,), "input_dtype": "float32", "num_classes": 2},
    **{"clients": (), "functions": (), "request_shape": None},
    schema=table.Schema(**named),
  )
  description.write(folder, described)
  rows = np.arange(40)
  x = np.stack([rows % 2, rows % 5], axis=1).astype(np.float32)
  np.savez(
    tmp_path / "data.npz",
    **{"x": x, "y": rows % 2, "domain": rows % 4},
    class_names=np.array(["well", "sick"]),
    feature_names=np.array(["age", "dose"]),
  )
  flags = f"--algorithm=fed_avg --dataset={tmp_path}/data.npz --num_clients=2"
  for path in (folder, folder / "weights.npz"):
    assert message in refused("evolving", f"{flags} --weights_file={path}")
