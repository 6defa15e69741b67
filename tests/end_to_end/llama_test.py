"""A tiny Llama on synthetic relations, through `experiments.online_adaptation`.

Nothing is downloaded: the model has random weights.
"""

import numpy as np
import pytest

import tff_shift
from examples import tiny_llama
from tff_shift import execution
from tff_shift.data import datasets
from tff_shift.models.networks import llama_checkpoint

_SMALL = """
  --dataset=synthetic_relations --client_classes=disjoint --timesteps=2
  --num_clients=2 --samples_per_step=12 --initial_examples=24
  --max_pretraining_examples=1865 --pretraining_epochs=12 --noprogress
"""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp("data") / "tiny"
  tiny_llama.write(folder, width=32, num_layers=2)
  return folder


@pytest.fixture
def flags(model_dir, tmp_path):
  # Not there from here: the folder is looked for beside the data sets.
  folders = f"--model_dir={model_dir.name} --data_dir={model_dir.parent}"
  return f"{_SMALL} {folders} --cache_dir={tmp_path / 'cache'}"


@pytest.mark.long
def test_fed_ade_adapts_it_and_leaves_the_base_alone(
  run, flags, model_dir, tmp_path
):
  ended = run(
    *("online_adaptation", flags, "--algorithm=fed_ade --save_model"),
    "--save_clients=1 --local_epochs=1 --batch_size=8 --optimizer=adamw",
    "--eta_max=1e-2 --lora_rank=3",
  )
  learned = float(ended.output.partition("model: ")[2].partition(" %")[0])
  # One of 41 by chance: adapters and head have learned from random features.
  assert learned > 4 * 100 / 41
  (found,) = ended.runs
  assert found["setting"]["model"] == "llama"
  assert found["metrics"]["not_finite"]["mean"] == 0
  # The base is in the client's model, which predicts by itself, and in no other
  # file: no checkpoint, nothing that is kept of pre-training.
  _, base = llama_checkpoint.read(model_dir)
  values = base.layers[0].gate.numpy().tobytes()
  files = [each for each in tmp_path.rglob("*") if each.is_file()]
  (found,) = (each for each in files if values in each.read_bytes())
  assert found.name.startswith("variables.data")
  # Of the server there is what was learned: q, k and v of one of two layers.
  folder = found.parents[1]
  with np.load(folder / "weights.npz") as arrays:
    assert [each for each in sorted(arrays) if "clients/" not in each] == [
      f"backbone/layer0_{name}/{each}"
      for name in ("key", "query", "value")
      for each in ("down", "up")
    ]
    assert arrays["backbone/layer0_value/up"].shape == (3, 16)
    assert np.abs(arrays["backbone/layer0_value/up"]).max() > 0
  data = datasets.load("synthetic_relations", model_dir=model_dir)
  logits = np.asarray(tff_shift.load(folder).predict_as(1, data.x))
  assert 100 * np.mean(logits.argmax(axis=1) == data.y) > 2 * 100 / 41


@pytest.mark.slow
def test_what_it_lacks_is_said_in_one_line(refused, flags, monkeypatch):
  monkeypatch.setattr(execution, "MOST_BYTES_SENT", 10_000)
  for given, message in (
    (
      f"{flags} --executor=local",
      "local would be sent the model's frozen weights",
    ),
    (f"{flags} --num_clients=30", "num_clients must be at most 20"),
    (
      f"{flags} --dataset=digits --model=llama",
      "llama takes tokens, int32 [length]",
    ),
    (_SMALL, "model_dir must be the folder"),
  ):
    line = refused("online_adaptation", f"{given} --algorithm=source")
    assert message in line
