"""Writes the programs of this folder as Jupyter notebooks.

    python -m examples.notebooks.convert --output_dir=runs/notebooks

A program has cells, which begin with `# %%`; `# %% [markdown]` begins text.
Needs nbformat, which is part of the extra `notebook`.
"""

import importlib.metadata
import pathlib
import re
import sys

from absl import app
from absl import flags

from tff_shift._util import files

FLAGS = flags.FLAGS

FOLDER = pathlib.Path(__file__).parent
_MARK = re.compile(r"^# %%(?P<text> \[markdown\])?\n", re.MULTILINE)
# The first cell. In an environment that has all of it, it does nothing.
_INSTALLATION = """\
PACKAGE = "{wheel}"  # Or /path/of/a/checkout, or git+https://...

import importlib.util
import subprocess
import sys

NEEDED = ("tff_shift", "tensorflow_federated")
if not all(map(importlib.util.find_spec, NEEDED)):
  for command in (["pip", "install", "-q", PACKAGE], ["tff_shift.install_tff"]):
    subprocess.run([sys.executable, "-m", *command], check=True)
  importlib.invalidate_caches()
  if "tensorflow" in sys.modules:
    raise SystemExit("TensorFlow was imported before: restart, run all cells.")
"""


def names() -> list[str]:
  """Returns the names of the programs with cells."""
  return sorted(
    path.stem
    for path in FOLDER.glob("*.py")
    if _MARK.match(path.read_text(encoding="utf-8"))
  )


def cells(program: str) -> list[tuple[str, str]]:
  """Splits a program into cells.

  Args:
    program: The program; it begins with a cell.

  Returns:
    `markdown` or `code`, and the source, of each cell.

  Raises:
    ValueError: If it does not begin with a cell, or text is not a comment.
  """
  marks = list(_MARK.finditer(program))
  if not marks or marks[0].start():
    raise ValueError("a notebook must begin with `# %%`")
  ends = [*(mark.start() for mark in marks[1:]), len(program)]
  found = []
  for mark, end in zip(marks, ends, strict=True):
    source = program[mark.end() : end].strip("\n")
    if mark["text"]:
      lines = source.splitlines()
      for line in lines:
        if line != "#" and not line.startswith("# "):
          raise ValueError(f"text must be comments; got {line!r}")
      found.append(("markdown", "\n".join(line[2:] for line in lines)))
    else:
      # Readers do not need the formatter's comments.
      found.append(("code", re.sub(r"  # fmt: skip$", "", source, flags=re.M)))
  return found


def installation() -> str:
  """Returns the cell that installs tff_shift from the wheel beside it."""
  version = importlib.metadata.version("tff_shift")
  wheel = f"tff_shift-{version}-py3-none-any.whl"
  return _INSTALLATION.format(wheel=wheel).rstrip()


def convert(program: str):
  """Returns a program with cells as a notebook of nbformat."""
  import nbformat
  from nbformat import v4

  make = {"markdown": v4.new_markdown_cell, "code": v4.new_code_cell}
  made = [
    # The same program gives the same file.
    make[kind](source, id=f"cell-{index}")
    for index, (kind, source) in enumerate(
      [("code", installation()), *cells(program)]
    )
  ]
  kernel = {
    "display_name": "Python 3",
    "language": "python",
    "name": "python3",
  }
  notebook = v4.new_notebook(cells=made, metadata={"kernelspec": kernel})
  nbformat.validate(notebook)
  return notebook


def main(_) -> None:
  """Writes all notebooks."""
  try:
    import nbformat
  except ModuleNotFoundError:
    sys.exit(
      "nbformat is missing; install the extra notebook, see"
      " docs/tutorials/notebooks.md"
    )
  folder = pathlib.Path(FLAGS.output_dir)
  files.make_folder(folder)
  for name in names():
    program = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    path = folder / f"{name}.ipynb"
    files.write_atomically(path, nbformat.writes(convert(program)) + "\n")
    print(path)


if __name__ == "__main__":
  flags.DEFINE_string(
    "output_dir", "runs/notebooks", "Folder of the notebooks."
  )
  app.run(main)
