"""Titles through the binaries: files of posts, methods, models, predictions."""

import json

import numpy as np
import pytest

import tff_shift
from tff_shift.data.readers import text_archives

_SMALL = """
  --num_clients=2 --rounds=1 --local_steps=1 --batch_size=4 --model_width=3
  --embedding_width=2 --noprogress --dataset=reddit --num_domains=3
"""


def write_posts(folder):
  """Four titles of each class and half-year, of which only the last has new."""
  archive = folder / "reddit"
  archive.mkdir()
  with open(archive / "posts.jsonl", "w", encoding="utf-8") as file:
    for half_year in range(10):
      start = np.datetime64("2014-01") + 6 * half_year
      for subreddit in text_archives.SUBREDDITS:
        for number in range(4):
          new = "new" if half_year == 9 else "old"
          post = {
            "title": f"{subreddit} {new} {'abcdefghij'[half_year]} {number}",
            "subreddit": subreddit,
            "created_utc": int(start.astype("datetime64[s]").astype(int)),
          }
          file.write(f"{json.dumps(post)}\n")


@pytest.fixture(scope="module")
def run_reddit(run_in, tmp_path_factory):
  """Returns `run(algorithms, *flags)`, a run of them."""
  folder = tmp_path_factory.mktemp("titles")
  write_posts(folder)
  return lambda algorithms, *flags: run_in(
    folder / algorithms,
    *("evolving", _SMALL, f"--data_dir={folder} --algorithm={algorithms}"),
    *flags,
    errors="",
  )


@pytest.mark.long
class TestReddit:
  @pytest.mark.parametrize(
    "names",
    [
      # They do more with examples than to train on them.
      ("t3a",),
      pytest.param(
        ("cfed", "fed_the", "fed_evolve"), marks=pytest.mark.every_algorithm
      ),
    ],
  )
  def test_methods_train_and_predict(self, run_reddit, names):
    options = ["--public_examples=8"] if "cfed" in names else []
    runs = run_reddit(",".join(names), *options).runs
    assert [run["algorithm"] for run in runs] == list(names)
    for run in runs:
      assert run["setting"]["model"] == "bi_lstm"
      assert run["setting"]["num_domains"] == 3
      assert run["num_diverged"] == [0]
      (accuracy,) = run["metrics"]["client_accuracy"]["seeds"]
      # Two clients hold 40 titles of the target's 80 each.
      right = accuracy * 80 / 100
      assert 0 <= right <= 80 and abs(right - round(right)) < 1e-3
      assert run["metrics"]["client_loss"]["mean"] > 0

  def test_saved_model_knows_the_words_of_the_sources(
    self, run_reddit, drawn_figures, run_here, tmp_path
  ):
    with drawn_figures():
      output = run_reddit("fed_avg", "--save_model --save_clients=1").folder
    assert (output / "figures" / "domains.png").stat().st_size > 10_000
    (folder,) = output.glob("model/fed_avg/**/seed_0")
    model = tff_shift.load(folder)
    assert model.input_dtype == np.int32 and model.input_shape == (30,)
    assert "old" in model.vocabulary and "new" not in model.vocabulary
    titles = ["Movies, old!", "news of the world", ""]
    ids = model.ids_of(titles)
    assert ids[1, :4].tolist() == [model.vocabulary.index("news"), 1, 1, 1]

    path = tmp_path / "titles.npz"
    np.savez(path, x=np.array(titles), y=np.zeros(3, np.int32))
    flags = f"--model={folder} --input={path} --client=1"
    found = []
    for name, x in (("texts", np.array(titles)), ("ids", ids)):
      np.savez(path, x=x)
      output = tmp_path / f"{name}.npz"
      assert run_here("predict", f"{flags} --output={output}") == 0
      with np.load(output) as arrays:
        found.append(arrays["logits"])
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(
      found[0], model.predict_as(1, ids), rtol=0, atol=1e-6
    )
