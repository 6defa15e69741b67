"""The flag `--metrics` of each binary, run whole."""

import json

import numpy as np
import pandas
import pytest

from tff_shift.learning import metrics

_CIRCLE = """
  --dataset=circle --num_domains=3 --max_examples_per_domain=60 --num_clients=3
  --rounds=1 --algorithm=fed_avg --noprogress
"""
_DIGITS = """
  --dataset=digits --model=mlp --model_width=4 --num_clients=2 --noprogress
"""
_STREAM = f"""{_DIGITS} --max_pretraining_examples=200 --pretraining_epochs=1
  --timesteps=2 --samples_per_step=9 --initial_examples=6 --head_epochs=1
  --algorithm=fed_ade --shift=linear
"""
_PERIODS = f"""{_DIGITS} --max_examples=600 --period_size=20 --periods=1
  --representation=pca --distance_threshold=1 --algorithm=fed_avg
  --test_distributions=iid --rounds=1
"""
_QUERIES = f"{_DIGITS} --max_examples=300 --rounds=1 --algorithm=fed_drm"
# By binary: its plan, its flags, and the prefixes of its metrics.
_BINARIES = {
  "evolving": (_CIRCLE, ("client_", "server_")),
  "online_adaptation": (_STREAM, ("",)),
  "guidance": (_QUERIES, ("own_", "system_")),
  "dynamic_personalization": (_PERIODS, ("",)),
}


@pytest.mark.long
@pytest.mark.parametrize("binary", _BINARIES)
def test_metrics_are_in_rows_summary_and_tables(
  binary, run, tmp_path, monkeypatch
):
  # There may be a folder of a cache.
  monkeypatch.chdir(tmp_path)
  flags, prefixes = _BINARIES[binary]
  asked = "--metrics=balanced_accuracy,confusion_matrix"
  ended = run(binary, flags, asked, errors="")
  (summary,) = ended.runs
  for prefix in prefixes:
    name = f"{prefix}balanced_accuracy"
    assert name.replace("_", " ") in ended.output
    last = float(ended.rows[-1][name])
    assert name in summary["metrics"]
    assert name not in summary["lower_is_better"]
    (path,) = ended.folder.glob(f"figures/{prefix}confusion_matrix_*.json")
    counts = np.array(json.loads(path.read_text())["seeds"]["0"])
    occurs = counts.sum(axis=1) > 0
    recall = counts.diagonal()[occurs] / counts.sum(axis=1)[occurs]
    # Of all clients; in dynamic personalization, rows are means over clients.
    if binary != "dynamic_personalization":
      assert last == pytest.approx(100 * recall.mean(), rel=1e-5)


@pytest.mark.slow
def test_own_metric_with_an_aggregator_that_does_not_protect_it(
  run, tmp_path, monkeypatch
):
  monkeypatch.setattr(metrics, "_registered", {})
  (tmp_path / "dread.py").write_text(
    "import tensorflow as tf, tff_shift as ts\n"
    "METRIC = ts.Metric(lambda logits, y: tf.cast(y, tf.float32),\n"
    "  lambda sums, n: sums / n, higher_is_better=False)\n"
  )
  ended = run(
    *("evolving", _CIRCLE, f"--import={tmp_path / 'dread.py'}"),
    "--metrics=mean_dread --aggregator=dp --noise_multiplier=0",
    # The default of three clients would be warned of.
    "--clipping=adaptive --dp_delta=0.001",
    errors="",
  )
  (summary,) = ended.runs
  assert "client_mean_dread" in summary["lower_is_better"]
  told = summary["setting"]["not_protected"]
  assert "accuracy" in told and "mean_dread" in told
  assert f"dp: epsilon does not cover {told}\n" in ended.output


@pytest.mark.slow
@pytest.mark.parametrize("target", ["last", "rolling"])
def test_clients_that_lack_classes_are_left_out_and_named(
  target, run, tmp_path
):
  rows = np.arange(240)
  table = pandas.DataFrame({"y": rows % 2, "x": np.cos(rows), "t": rows // 120})
  table["c"] = np.array(["a", "b", "c"])[rows // 2 % 3]
  # In the target, c has one class.
  table = table[~((table.c == "c") & (table.t == 1) & (table.y == 1))]
  table.to_csv(tmp_path / "t.csv", index=False)
  ended = run(
    *(
      "evolving",
      f"--dataset={tmp_path / 't.csv'} --label=y --client=c --time=t",
    ),
    "--algorithm=fed_avg --rounds=1 --local_steps=1 --model=linear",
    f"--metrics=auroc,mean_auroc,mean_macro_f1 --target={target}",
  )
  (summary,) = ended.runs
  assert summary["left_out"] == {
    "client_mean_auroc": {"num_clients": 1, "clients": ["c"]}
  }
  line = "not in client_mean_auroc of fed_avg: 1 client (c)\n"
  assert line in ended.output
  assert 0 <= summary["metrics"]["client_mean_auroc"]["mean"] <= 1
