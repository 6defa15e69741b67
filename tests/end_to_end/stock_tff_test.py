"""The program of the page on stock TFF, as it stands there."""

import pathlib
import re

import pytest
import tensorflow_federated as tff

_PAGE = pathlib.Path(__file__).parents[2] / "docs/how_to/stock_tff.md"
_ROUNDS = "train_total_rounds=10"


@pytest.fixture
def run_program(tmp_path, monkeypatch, capsys):
  """Returns `run(rounds) -> (printed, metrics.csv)`."""
  text = _PAGE.read_text(encoding="utf-8")
  (source,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.M)
  assert source.count(_ROUNDS) == 1
  monkeypatch.chdir(tmp_path)
  # The program sets a default context.
  contexts = tff.framework.get_context_stack()
  before = contexts.current

  def run(rounds):
    changed = source.replace(_ROUNDS, f"train_total_rounds={rounds}")
    exec(compile(changed, _PAGE, "exec"), {})
    metrics = pathlib.Path("stock_tff", "metrics.csv")
    return capsys.readouterr().out, metrics.read_text(encoding="utf-8")

  yield run
  tff.framework.set_default_context(before)


@pytest.mark.long
def test_program_of_the_page_learns_and_goes_on(run_program):
  # Stopped between two evaluations.
  assert len(run_program(4)[1].splitlines()) == 5
  printed, metrics = run_program(10)
  accuracies = re.findall(r"^(\d+) (0\.\d+)$", printed, re.MULTILINE)
  # What the page says of a program that is not stopped.
  assert [number for number, _ in accuracies] == ["5", "10"]
  assert [float(each) for _, each in accuracies] == pytest.approx(
    [0.908, 0.944], abs=0.015
  )
  assert len(metrics.splitlines()) == 11
