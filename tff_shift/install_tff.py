"""Installs TensorFlow Federated into the environment of this Python.

  python -m tff_shift.install_tff

TFF and tensorflow-privacy ask for an older Python and for older releases of
what they need. They run beside the releases that tff_shift asks for, so they
are installed without what they ask for: by pip, or by uv where there is no pip.
What is there already stays. At the end a new process imports TFF.
"""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import sysconfig

from packaging import tags

# As in requirements.in.
TFF = "tensorflow-federated==0.87.0"
PRIVACY = "tensorflow-privacy==0.9.0"
# Of TFF's wheel, because of its worker, which is a program. In process, its
# Python files are enough.
_PLATFORM = "manylinux_2_31_x86_64"
_IMPORT = """
try:
  import platform
  import tff_shift
  import numpy as np
  import tensorflow as tf
  import tensorflow_federated as tff
except Exception as error:
  raise SystemExit(f"TFF does not import: {type(error).__name__}: {error}")
print(
  f"TFF {tff.__version__} runs beside TensorFlow {tf.__version__}, NumPy"
  f" {np.__version__} and Python {platform.python_version()}."
)
"""
_ABOUT_PIP_CHECK = """\
`pip check` now prints what TFF and tensorflow-privacy ask for and what is newer
or absent here. When you install another package, pip prints the same as an
"ERROR". Both are expected and harmless: section "What pip check prints" of
docs/how_to/install.md."""


def command(requirement: str, fits: bool, uv: str | None = None) -> list[str]:
  """Returns the command that installs a release, and nothing that it asks for.

  Args:
    requirement: The release, `name==version`.
    fits: Whether an installer takes its wheel on this platform.
    uv: The path of uv; None for pip.
  """
  if uv:
    # It does not look at the upper bound of a Python.
    words = [uv, "pip", "install", f"--python={sys.executable}"]
    other = ["--python-platform=x86_64-manylinux_2_31"]
  else:
    words = [sys.executable, "-m", "pip", "install", "--no-input"]
    words += ["--disable-pip-version-check", "--ignore-requires-python"]
    other = [f"--platform={_PLATFORM}", "--implementation=py", "--abi=none"]
  words += ["--quiet", "--no-deps", "--only-binary=:all:"]
  if not fits:
    words += [*other, f"--target={sysconfig.get_path('purelib')}"]
  return [*words, requirement]


def _installed(name: str) -> str | None:
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None


def run(words: list[str]) -> str:
  """Returns what a command prints; exits with one line if it fails."""
  process = subprocess.run(words, capture_output=True, text=True, check=False)
  if process.returncode:
    # Of pip's messages, the first of them says why.
    _, mark, error = process.stderr.partition("ERROR: ")
    text = error.partition("\n")[0] if mark else process.stderr
    sys.exit(f"install_tff: {' '.join(text.split())}")
  return process.stdout


def main() -> None:
  """Installs what is missing and imports TFF."""
  uv = None if importlib.util.find_spec("pip") else shutil.which("uv")
  for requirement in (TFF, PRIVACY):
    name, _, version = requirement.partition("==")
    found = _installed(name)
    if found == version:
      print(f"{name} {version} is installed already.")
      continue
    fits = requirement != TFF or _PLATFORM in tags.platform_tags()
    if found and not fits:
      # --target leaves its files beside the new ones.
      sys.exit(f"install_tff: {name} {found} is installed; uninstall it first")
    print(f"Installing {name} {version} ...", flush=True)
    run(command(requirement, fits, uv))
  print(run([sys.executable, "-c", _IMPORT]) + _ABOUT_PIP_CHECK)


if __name__ == "__main__":
  main()
