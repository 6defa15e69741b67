"""The notebooks run as programs and in Jupyter, and their results hold."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

from examples.notebooks import convert

_ROOT = pathlib.Path(__file__).parents[1]
_NAMES = convert.names()


def has(name):
  return importlib.util.find_spec(name) is not None


def test_cells_are_text_and_code():
  program = (
    "# %% [markdown]\n# # Title\n#\n# Text.\n\n"
    "# %%\nx = f(\n  1, 2,\n)  # fmt: skip\n\n\n# %%\nx\n"
  )
  assert convert.cells(program) == [
    ("markdown", "# Title\n\nText."),
    ("code", "x = f(\n  1, 2,\n)"),
    ("code", "x"),
  ]


@pytest.mark.parametrize(
  "program, message",
  [
    ("x = 1\n# %%\n", "must begin with"),
    ("", "must begin with"),
    ("# %% [markdown]\n# Text\nx = 1\n", "text must be comments; got 'x = 1'"),
  ],
)
def test_programs_that_are_no_notebook_are_refused(program, message):
  with pytest.raises(ValueError, match=message):
    convert.cells(program)


@pytest.mark.parametrize("name", _NAMES)
def test_text_comes_first_and_results_last(name):
  program = (convert.FOLDER / f"{name}.py").read_text(encoding="utf-8")
  (first, text), *_, (last, source) = convert.cells(program)
  assert first == "markdown" and text.startswith("# ")
  assert last == "code" and "print(" in source
  assert ".fmt: skip" not in source


@pytest.mark.slow
@pytest.mark.notebook
@pytest.mark.parametrize("name", _NAMES)
def test_program_ends_with_its_result(name):
  ended = subprocess.run(
    [sys.executable, convert.FOLDER / f"{name}.py"],
    cwd=_ROOT,
    env={**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": str(_ROOT)},
    capture_output=True,
    text=True,
    timeout=900,
    check=False,
  )
  assert ended.returncode == 0, ended.stderr[-2000:]
  # tqdm's bars.
  assert "100%" in ended.stderr
  gains = re.findall(r": ([+-]\d+\.\d) points", ended.stdout)
  assert gains and all(float(gain) > 0 for gain in gains)


@pytest.mark.slow
@pytest.mark.notebook
@pytest.mark.skipif(
  not (has("nbclient") and has("ipykernel")),
  reason="nbclient and ipykernel, of the extra notebook, are not installed",
)
@pytest.mark.parametrize("name", _NAMES)
def test_notebook_runs_in_jupyter_with_inline_figures(name, monkeypatch):
  import nbclient

  monkeypatch.setenv("PYTHONPATH", str(_ROOT))
  program = (convert.FOLDER / f"{name}.py").read_text(encoding="utf-8")
  notebook = convert.convert(program)
  nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3").execute(
    cwd=str(_ROOT)
  )
  outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
  images = [out for out in outputs if "image/png" in out.get("data", {})]
  assert images and all("alt" in out["metadata"]["image/png"] for out in images)
  assert not any(out["output_type"] == "error" for out in outputs)
