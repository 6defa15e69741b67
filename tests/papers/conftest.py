"""Reproductions run in this process, of binaries that are not the real ones."""

import pathlib
import sys
import types

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import reproduce
from experiments.papers import binary_flags
from experiments.papers import job as job_lib
from experiments.papers import specification
from tff_shift.command_line import program

_REAL_COMMAND = job_lib.command


@pytest.fixture(scope="session", autouse=True)
def known_flags():
  """Flags of the binaries are looked up before a test defines any."""
  for binary in specification.BINARIES:
    binary_flags.of(binary)


@pytest.fixture
def fake_binaries(monkeypatch):
  """Jobs start `fake_binary` instead of their binaries."""
  monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parent))

  def command(job, output_dir, more=()):
    return ["fake_binary", *_REAL_COMMAND(job, output_dir, more)[1:]]

  monkeypatch.setattr(job_lib, "command", command)


@pytest.fixture
def pages(monkeypatch):
  """Stands for the writer of pages: the contents that it was given."""
  written = []
  page = types.ModuleType("tff_shift.reporting.pages.page")
  page.write = lambda contents, folder: written.append(contents)
  monkeypatch.setitem(sys.modules, page.__name__, page)
  monkeypatch.setattr("tff_shift.reporting.pages.page", page, raising=False)
  return written


@pytest.fixture
def run_reproduce(monkeypatch, pages):
  """Returns `run(*arguments) -> exit code`."""

  def run(*arguments):
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as end:
      monkeypatch.setattr(sys, "argv", ["reproduce", *arguments])
      flags.FLAGS.unparse_flags()
      program.run(reproduce.main, reproduce.define_flags, takes_arguments=True)
    return end.value.code or 0

  return run
