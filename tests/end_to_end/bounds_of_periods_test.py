"""The floor of accuracy on streams that drift, in a whole run."""

import pytest

from tff_shift.binaries import dynamic_personalization

_CLIENTS, _PERIODS, _SIZE = 3, 2, 20


@pytest.mark.slow
def test_each_stream_has_a_floor(run_whole, read_runs, tmp_path):
  folder = tmp_path / "run"
  run_whole(
    dynamic_personalization,
    [
      *("--dataset=digits", "--max_examples=600", "--rounds=2", "--noprogress"),
      *(f"--num_clients={_CLIENTS}", f"--periods={_PERIODS}"),
      *(f"--period_size={_SIZE}", "--pretraining_epochs=1", "--model=mlp"),
      *("--model_width=4", "--test_distributions=iid,0.9", "--bounds"),
      *("--algorithm=fed_avg", f"--output_dir={folder}"),
      f"--cache_dir={tmp_path / 'cache'}",
    ],
  )
  floors = {
    each["setting"]["test_distribution"]: each["metrics"]["accuracy"]["mean"]
    for each in read_runs(folder)
    if each["algorithm"] == "majority_class"
  }
  assert list(floors) == ["iid", "0.9"]
  for accuracy in floors.values():
    # A whole number of the examples of the stream is predicted.
    num_right = accuracy / 100 * _CLIENTS * _PERIODS * _SIZE
    assert 0 < num_right < _CLIENTS * _PERIODS * _SIZE
    assert num_right == pytest.approx(round(num_right), abs=1e-6)
