"""Tests of what is told of modules of the user that fail."""

import os

import pytest

from tests.fixtures import tables
from tff_shift._util import user_modules


@pytest.fixture
def write(tmp_path, monkeypatch):
  """Returns `write(content) -> path`, relative to the folder we are in."""
  monkeypatch.chdir(tmp_path)

  def write(content):
    (tmp_path / "mine.py").write_bytes(content.encode())
    return "mine.py"

  return write


def refusal(name):
  with pytest.raises(ValueError) as error:
    user_modules.load(name)
  return str(error.value)


try:
  compile("\0", "", "exec")
except (SyntaxError, ValueError) as error:
  NULL = type(error)


class TestLoad:
  @pytest.mark.parametrize(
    "content, told",
    [
      # A ValueError in older releases of Python.
      ("x = 1\0", f"{NULL.__name__}: source code string cannot contain null"),
      ("(" * 1000, "line 1: too many nested parentheses"),
      *tables.cases(r"""
"\nraise RuntimeError('two\\nlines')"
    line 2: RuntimeError: two lines
"import sys\nsys.exit()"
    line 2: it ends the process (sys.exit)
"raise SystemExit(0)"
    line 1: it ends the process (sys.exit)
"raise GeneratorExit"
    line 1: GeneratorExit
"class E(BaseException): pass\nraise E(3)"
    line 2: E: 3
"class E(Exception):\n  def __str__(self): return 1 / 0\nraise E"
    line 3: E
"def f():\n  f()\nf()"
    line 2: RecursionError: maximum
"import sys\ndel sys.modules[__name__]\n1 / 0"
    line 3: ZeroDivision
"x = ("
    line 1: '(' was never closed
"import helper_of_mine"
    line 1: SyntaxError:
"import no_module_of_this_name"
    line 1: ModuleNotFoundError: No mod
"""),
    ],
  )
  def test_whatever_a_file_raises_is_told_of_that_file(
    self, write, content, told, monkeypatch, tmp_path
  ):
    (tmp_path / "helper_of_mine.py").write_text("x = (")
    monkeypatch.syspath_prepend(str(tmp_path))
    line = refusal(write(content))
    assert line.startswith(f"mine.py: {told}")
    assert len(line.splitlines()) == 1

  def test_module_of_a_dotted_name_that_ends_the_process_is_named(
    self, tmp_path, monkeypatch
  ):
    (tmp_path / "a_module_that_exits.py").write_text("x = 1\nexit(1)")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert refusal("a_module_that_exits").startswith(
      "a_module_that_exits: line 2: it ends the process"
    )

  def test_what_is_no_file_is_refused_without_waiting(self, write, tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    assert refusal("pipe.py").startswith("pipe.py is a named pipe")
    assert refusal("folder.py").startswith("folder.py is a folder")
    long = "x" * 300 + ".py"
    assert refusal(long).startswith(f"{long} cannot be read: File name too")

  def test_interruption_goes_on_and_can_be_told(self, write):
    path = write("import signal\nraise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt) as error:
      user_modules.load(path)
    assert user_modules.blame(error.value) == "mine.py: line 2: interrupted"


class TestBlame:
  def test_cause_is_told_where_a_line_of_the_module_raises(self, write):
    module = user_modules.load(write("def f(x):\n  return 1 / x\n"))
    # TensorFlow wraps what it calls.
    with pytest.raises(ValueError) as error:
      try:
        list(map(module.f, [1, 0]))
      except ZeroDivisionError as cause:
        raise ValueError("in another's words") from cause
    told = "mine.py: line 2: ZeroDivisionError: division by zero"
    assert user_modules.blame(error.value) == told
    # Once is enough.
    assert user_modules.blame(ValueError(told)) is None

  def test_errors_of_others_are_nobodys(self, write):
    user_modules.load(write("x = 1"))
    with pytest.raises(ZeroDivisionError) as error:
      1 / 0  # noqa: B018
    assert user_modules.blame(error.value) is None
    assert user_modules.asked(pytest) is None
