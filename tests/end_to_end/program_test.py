"""How a binary begins: its flags and its help."""

import sys
import unittest.mock

import pytest
from absl import flags
from absl.testing import flagsaver

from tff_shift.command_line import output_folder
from tff_shift.command_line import program


@pytest.mark.slow
@pytest.mark.parametrize(
  "binary, flag", [("evolving", "--help"), ("reproduce", "--list")]
)
def test_reader_that_leaves_ends_the_output_and_nothing_else(
  start_binary, binary, flag
):
  with start_binary(binary, [flag]) as process:
    # As `head` does, only before anything was printed.
    process.stdout.close()
    assert process.stderr.read() == ""
  assert process.returncode == 141


@pytest.mark.slow
def test_output_on_a_full_disk_is_told_in_one_line(start_binary):
  with (
    open("/dev/full", "w") as full,
    start_binary("reproduce", ["--list"], stdout=full) as process,
  ):
    assert process.stderr.read() == (
      "reproduce: standard output cannot be written: No space left on device;"
      " files written so far were kept\n"
    )
  assert process.returncode == 5


@pytest.mark.parametrize(
  "argument, value, written",
  [
    ("--resume", True, "--resume"),
    ("--noresume", False, "--noresume"),
    ("--resume=true", True, "--resume"),
    ("--resume=0", False, "--noresume"),
    ("--resume=auto", "auto", "--resume=auto"),
    ("--resume=Auto", "auto", "--resume=auto"),
  ],
)
def test_resume_is_a_truth_value_or_auto(argument, value, written):
  with flagsaver.flagsaver():
    output_folder.define_resume("What is said of it.")
    # As a file of flags has it.
    for given in (argument, written):
      flags.FLAGS(["binary", given])
      assert flags.FLAGS.resume == value
      assert type(flags.FLAGS.resume) is type(value)
      assert written in flags.FLAGS.flags_into_string().splitlines()
    with pytest.raises(flags.IllegalFlagValueError, match="or auto"):
      flags.FLAGS(["binary", "--resume=maybe"])


def test_other_broken_pipe_is_an_error():
  def main():
    raise BrokenPipeError("of a worker")

  with (
    flagsaver.flagsaver(),
    unittest.mock.patch.object(sys, "argv", ["evolving"]),
    pytest.raises(BrokenPipeError, match="of a worker"),
  ):
    flags.FLAGS.unparse_flags()
    program.run(main, lambda: None)
