"""The program of the README, from stock TFF, as it stands there."""

import pathlib
import re

import pytest
import tensorflow_federated as tff

_README = pathlib.Path(__file__).parents[2] / "README.md"
_ROUNDS = "train_total_rounds=10"


@pytest.fixture
def run_program(monkeypatch, tmp_path, capsys):
  """Returns `run(folder, rounds) -> (printed, metrics.csv)`."""
  text = _README.read_text(encoding="utf-8")
  section = text.partition("### From stock TFF\n")[2].partition("\n### ")[0]
  (source,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.M)
  assert source.count(_ROUNDS) == 1

  def run(folder, rounds):
    (tmp_path / folder).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / folder)
    changed = source.replace(_ROUNDS, f"train_total_rounds={rounds}")
    exec(compile(changed, "README.md", "exec"), {"__name__": "program"})
    metrics = tmp_path / folder / "stock_tff" / "metrics.csv"
    return capsys.readouterr().out, metrics.read_text(encoding="utf-8")

  before = tff.framework.get_context_stack().current
  yield run
  # The program has set its own.
  tff.framework.set_default_context(before)


@pytest.mark.slow
def test_program_of_the_readme_learns_and_goes_on(run_program):
  printed, metrics = run_program("whole", 10)
  accuracies = re.findall(r"^(\d+) (0\.\d+)$", printed, re.MULTILINE)
  assert [number for number, _ in accuracies] == ["5", "10"]
  assert float(accuracies[1][1]) > 0.9
  assert len(metrics.splitlines()) == 11

  run_program("stopped", 4)
  printed_later, metrics_later = run_program("stopped", 10)
  assert printed_later == printed
  assert metrics_later == metrics
