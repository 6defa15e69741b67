"""Models that binaries leave."""

import json

import numpy as np
import pytest
import tensorflow as tf

import tff_shift

FLAGS = """
  --dataset=circle --num_domains=5 --num_clients=3 --rounds=1 --model_width=4
  --batch_size=8 --local_steps=1 --save_model
"""
DITTO = f"""{FLAGS} --algorithm=ditto --learning_rate=0.01,0.1
  --select=last_source --selection_seeds=0 --seeds=0,1
"""


@pytest.mark.slow
class TestSaved:
  @pytest.fixture(scope="class")
  def finished(self, run_once):
    """Two seeds at the better of two rates; models of two clients are saved."""
    return run_once("evolving", DITTO, "--save_clients=0,2").folder

  def test_only_what_was_chosen_is_saved(self, finished):
    folder = finished
    models = sorted(path.parent for path in folder.rglob("model.json"))
    assert [path.name for path in models] == ["seed_0", "seed_1"]
    for path in models:
      assert path.relative_to(folder).parts[:3] == ("model", "ditto", "target")
      # The folder of the curve in TensorBoard.
      curve = folder / "tensorboard" / path.relative_to(folder / "model")
      assert curve.is_dir()
      rate = json.loads((path / "model.json").read_text())["hparams"][
        "learning_rate"
      ]
      assert f"rate_{rate:g}" in path.parts
      assert tff_shift.load(path).clients == (0, 2)
    with pytest.raises(ValueError, match="holds 2 models"):
      tff_shift.load(folder)

  def test_finished_run_leaves_it_again_when_resumed(self, finished, run_in):
    first = next((finished / "model").rglob("weights.npz"))
    with np.load(first) as arrays:
      before = dict(arrays)
    first.unlink()
    # Whose models are saved has no effect on what is measured.
    run_in(finished, "evolving", DITTO, "--save_clients=all --resume")
    with np.load(first) as arrays:
      clients = {name.split("/")[1] for name in arrays if "clients" in name}
      assert clients == {*"012"}
      for name, values in before.items():
        np.testing.assert_array_equal(arrays[name], values)

  def test_overwriting_replaces_it(self, finished, run_in):
    # Local training shares nothing: without clients there is no model.
    run_in(finished, "evolving", FLAGS, "--algorithm=local --overwrite")
    assert not (finished / "model").exists()


@pytest.mark.slow
def test_clients_with_names_are_chosen_by_name(run, refused, tmp_path):
  """The clients of a file are hospitals 1, 2 and 3."""
  rows = np.arange(90)
  path = tmp_path / "data.npz"
  x = np.stack([rows % 2, rows % 5], axis=1).astype(np.float32)
  np.savez(path, x=x, y=rows % 2, domain=rows % 3, client=rows // 30 + 1)
  flags = [f"--dataset={path}", "--algorithm=local", "--rounds=1"]
  for clients in ("0", "1,4", "1,1"):
    assert refused("evolving", [*flags, f"--save_clients={clients}"]).endswith(
      f"--save_clients={clients}: it must be none, all, or names of clients"
      " (1, 2, 3), without duplicates\n"
    )
  ended = run("evolving", *flags, "--save_model --save_clients=3,1")
  model = tff_shift.load(ended.folder)
  assert (model.clients, model.client_names) == ((0, 2), ("1", "3"))
  np.testing.assert_array_equal(
    model.predict_as("3", x), model.predict_as(tf.constant(2), x)
  )


def test_guidance_saves_all_clients_by_default(run_here, capsys):
  assert run_here("guidance", "--help=output") == 0
  text = capsys.readouterr().out
  assert "(default: 'all')" in text[text.index("--save_clients") :][:300]
