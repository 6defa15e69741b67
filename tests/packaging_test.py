"""What is installed: versions, the licence, what the wheel has and asks for."""

import ast
import collections
import email
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
import tensorflow as tf
from packaging import requirements
from packaging import utils

from examples.notebooks import convert
from tff_shift import install_tff

_ROOT = pathlib.Path(__file__).parents[1]
# What TFF asks for at import; the package's import hook does without it.
_GONE = {"jax", "jaxlib", "google-vizier"}
# Like TFF itself, it asks for a Python below 3.12.
_ADDED = {"tensorflow-federated", "tensorflow-privacy"}
# Runs cells in a new kernel, and prints what each printed or its error.
_RUN_CELLS = """
import json, sys
import nbclient, nbformat
cells = [nbformat.v4.new_code_cell(source) for source in json.load(sys.stdin)]
nbclient.NotebookClient(
  nbformat.v4.new_notebook(cells=cells), timeout=1200, allow_errors=True
).execute()
print(json.dumps([
  "".join(
    out.get("text", out.get("evalue", ""))
    for out in cell["outputs"]
    if out.get("name") != "stderr"
  )
  for cell in cells
]))
"""
_SUM = """
from tff_shift.execution import in_process
import numpy as np
import tensorflow_federated as tff
@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def total(values):
  return tff.federated_sum(values)
with in_process.in_process_context():
  print(total([1, 2, 3]))
"""


def read(name):
  return (_ROOT / name).read_text(encoding="utf-8")


def test_version_is_one_and_the_same():
  (version,) = re.findall(
    r'^  version="(.*)",$', read("setup.py"), re.MULTILINE
  )
  assert re.findall(r"^version: (.*)$", read("CITATION.cff"), re.MULTILINE) == [
    version
  ]
  # The newest comes first.
  assert (
    re.findall(r"^## \[(\d.*)\] - ", read("CHANGELOG.md"), re.MULTILINE)[0]
    == version
  )


def test_licence_is_the_whole_text():
  # TFF's is the same text.
  (path,) = (
    file
    for file in importlib.metadata.files("tensorflow-federated")
    if file.name == "LICENSE"
  )
  digests = [
    hashlib.sha256(content).hexdigest()
    for content in (
      path.locate().read_bytes(),
      (_ROOT / "LICENSE").read_bytes(),
    )
  ]
  assert digests[0] == digests[1]


def asked_for():
  """What setup.py asks for, by name."""
  listed = {}
  for node in ast.walk(ast.parse(read("setup.py"))):
    if isinstance(node, ast.Assign) and node.targets[0].id in (
      "_DIRECT",
      "_OF_TFF",
    ):
      for text in ast.literal_eval(node.value):
        each = requirements.Requirement(text)
        listed[utils.canonicalize_name(each.name)] = each.specifier
  return listed


def test_lock_has_what_the_package_asks_for():
  # Of some packages, each Python has its release.
  lock = collections.defaultdict(list)
  for name, version in re.findall(
    r"^(\S+)==(\S+)", read("requirements.txt"), re.MULTILINE
  ):
    lock[utils.canonicalize_name(name)].append(version)
  (extra,) = re.findall(r'"text": (\[.*\]),', read("setup.py"))
  texts = ast.literal_eval(extra)
  for text in (*texts, install_tff.TFF, install_tff.PRIVACY):
    assert f"\n{text}\n" in read("requirements.in")
  wanted = asked_for() | {
    each.name: each.specifier for each in map(requirements.Requirement, texts)
  }
  for name, specifier in wanted.items():
    assert lock[name] and all(v in specifier for v in lock[name]), name


def test_package_asks_for_what_tff_asks_for():
  listed = asked_for()
  wanted = {
    utils.canonicalize_name(requirements.Requirement(text).name)
    for text in importlib.metadata.requires("tensorflow-federated")
  }
  assert wanted - listed.keys() == _GONE | (_ADDED & wanted)
  assert not _ADDED & listed.keys()


@pytest.mark.skipif(
  not tf.__version__.startswith("2.14"), reason="TFF's pins: TensorFlow 2.14"
)
def test_old_lock_has_the_releases_that_tff_asks_for():
  for text in importlib.metadata.requires("tensorflow-federated"):
    requirement = requirements.Requirement(text)
    # Releases of jaxlib that TFF asks for are gone.
    if requirement.name not in ("jax", "jaxlib"):
      version = importlib.metadata.version(requirement.name)
      assert version in requirement.specifier


def test_release_without_a_date_is_refused(tmp_path):
  # Until its day the section has no date.
  for name in ("setup.py", "CITATION.cff"):
    shutil.copy(_ROOT / name, tmp_path)
  (tmp_path / "CHANGELOG.md").write_text("## [0.9.0] - unreleased\n")
  (tmp_path / ".ci").mkdir()
  shutil.copy(_ROOT / ".ci/release", tmp_path / ".ci")
  process = subprocess.run(
    [tmp_path / ".ci/release"], capture_output=True, text=True, check=False
  )
  assert process.returncode == 1
  assert process.stderr.startswith(
    "release: CHANGELOG.md starts with '## [0.9.0] - unreleased'; of setup.py"
  )
  assert process.stderr.count("\n") == 1


@pytest.mark.slow
class TestWheel:
  @pytest.fixture(scope="class")
  def wheel(self, tmp_path_factory):
    # A copy: building leaves folders behind, and what lies in them goes in.
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("tff_shift", "experiments"):
      shutil.copytree(_ROOT / name, folder / "source" / name)
    for name in ("setup.py", "tff_shift.pth", "README.md", "LICENSE"):
      shutil.copy(_ROOT / name, folder / "source")
    subprocess.run(
      [
        *(sys.executable, "-m", "pip", "wheel", str(folder / "source")),
        *("--no-deps", "--no-build-isolation", "--no-index"),
        *("--wheel-dir", str(folder)),
      ],
      check=True,
      capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as file:
      yield file

  def test_it_has_all_modules_and_files(self, wheel):
    names = set(wheel.namelist())
    wanted = {
      f"tff_shift/{file.relative_to(_ROOT / folder).as_posix()}"
      for folder, patterns in (
        (
          "tff_shift",
          ("*.py", "*.pyi", "*.json", "templates/*", "py.typed"),
        ),
        # Its programs and tables stay in a checkout.
        ("experiments", ("*.flags",)),
      )
      for pattern in patterns
      for file in (_ROOT / folder).rglob(pattern)
    }
    assert "tff_shift/py.typed" in wanted
    assert "tff_shift/presets/evolving/demo.flags" in wanted
    assert "tff_shift/reporting/pages/templates/report.html" in wanted
    # Beside the package, where Python reads it.
    wanted.add("tff_shift.pth")
    assert wanted <= names
    assert all(name in wanted or ".dist-info/" in name for name in names), (
      "nothing else goes in"
    )
    assert any(name.endswith("/LICENSE") for name in names)

  def test_console_script_starts_what_there_is(self, wheel):
    (path,) = (n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    scripts = wheel.read(path).decode().split("\n\n")[0]
    assert scripts.strip() == (
      "[console_scripts]\ntff-shift = tff_shift.__main__:main"
    )

  def test_metadata_name_the_licence(self, wheel):
    (path,) = (n for n in wheel.namelist() if n.endswith("METADATA"))
    metadata = email.message_from_bytes(wheel.read(path))
    assert "Apache-2.0" in (metadata["License-Expression"], metadata["License"])
    assert sorted(metadata["Requires-Python"].split(",")) == ["<3.14", ">=3.11"]

  @pytest.mark.long
  def test_first_cell_of_a_notebook_installs_it(self, wheel, tmp_path):
    env = tmp_path / "env"
    python = env / "bin/python"

    def run(*words, **options):
      return subprocess.run(
        [python, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        **options,
      )

    def run_cells(*cells):
      process = run(
        *("-c", _RUN_CELLS),
        input=json.dumps(cells),
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
      )
      assert process.returncode == 0, process.stderr
      # The kernel writes there, too.
      return json.loads(process.stdout.splitlines()[-1])

    subprocess.run([sys.executable, "-m", "venv", env], check=True)
    try:
      process = run(
        *("-m", "pip", "install", "--retries=1", "ipykernel", "nbclient")
      )
      if process.returncode:
        pytest.skip(f"pip downloads nothing: {process.stderr[-200:]}")
      first, *others = convert.installation().splitlines()
      assert first.startswith("PACKAGE = ")
      cell = "\n".join([f"PACKAGE = {wheel.filename!r}", *others])
      printed, result = run_cells(cell, _SUM)
      assert "TFF 0.87.0 runs beside TensorFlow 2.21.0" in printed
      assert result == "6\n"
      # It is installed into a kernel that has imported another TensorFlow.
      run("-m", "pip", "uninstall", "--yes", "tff_shift", check=True)
      *_, printed = run_cells("import tensorflow", cell)
      assert printed.endswith("restart, run all cells.")
      assert run_cells(cell, _SUM) == ["", "6\n"]
    finally:
      # 3 GB.
      shutil.rmtree(env)


def test_no_file_names_the_oldest_python_alone():
  # What was measured once; the locks; what is of the one Python that TFF pins.
  exempt = re.compile(
    r"results/|requirements.*\.txt|.*tf2\.14|.*/reported_values"
  )
  listed = subprocess.run(
    ["git", "ls-files"], cwd=_ROOT, capture_output=True, text=True, check=True
  ).stdout.split()
  alone = []
  for name in listed:
    content = (_ROOT / name).read_bytes() if (_ROOT / name).is_file() else b""
    versions = {*re.findall(rb"(?<![\d.])3(?:\.|, )1[123](?![\d])", content)}
    minors = {version[-2:] for version in versions}
    if b"11" in minors and len(minors) < 3 and not exempt.match(name):
      alone.append(name)
  assert alone == []


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_other_pythons_are_refused_before_a_dependency_is(version):
  # pip runs setup.py before it looks for the lock's packages.
  program = (
    "import runpy, setuptools, sys;"
    f" sys.version_info = ({version[0]}, {version[1]}, 1, 'final', 0);"
    f" sys.version = '{version[0]}.{version[1]}.1 (main)';"
    " sys.argv = ['setup.py', 'egg_info'];"
    " runpy.run_path('setup.py')"
  )
  process = subprocess.run(
    [sys.executable, "-c", program],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 1
  assert process.stderr == (
    "tff_shift needs Python 3.11, 3.12 or 3.13; this is Python"
    f" {version[0]}.{version[1]}.1\n"
  )


def test_missing_tff_is_said_in_one_line():
  # Without the folder of installed packages, as where TFF was not added.
  process = subprocess.run(
    [sys.executable, "-S", "-m", "experiments.evolving"],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 2
  assert process.stdout == ""
  assert process.stderr.startswith(
    "tff_shift: TensorFlow Federated is missing; install it with `python -m"
    " tff_shift.install_tff`"
  )
  assert process.stderr.count("\n") == 1


@pytest.mark.parametrize("uv", [None, "/bin/uv"])
@pytest.mark.parametrize("is_here", [True, False])
def test_tff_is_installed_alone(uv, is_here):
  words = install_tff.command(install_tff.TFF, is_here, uv)
  assert words[-1] == install_tff.TFF
  assert "--no-deps" in words
  # uv has no such option, and does not need it.
  assert ("--ignore-requires-python" in words) == (uv is None)
  site = sysconfig.get_path("purelib")
  assert (f"--target={site}" in words) != is_here
  if is_here:
    assert not any("--target" in word or "manylinux" in word for word in words)


@pytest.mark.slow
def test_what_is_installed_stays():
  process = subprocess.run(
    [sys.executable, "-m", "tff_shift.install_tff"],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  assert process.stdout.startswith(
    "tensorflow-federated 0.87.0 is installed already.\n"
    "tensorflow-privacy 0.9.0 is installed already.\n"
    f"TFF 0.87.0 runs beside TensorFlow {tf.__version__}"
  )


@pytest.mark.slow
def test_failed_installation_is_said_in_one_line():
  words = install_tff.command("tff-shift-absent==1", True)
  with pytest.raises(SystemExit) as error:
    install_tff.run([*words, "--no-index"])
  assert error.value.code == (
    "install_tff: Could not find a version that satisfies the requirement"
    " tff-shift-absent==1 (from versions: none)"
  )
