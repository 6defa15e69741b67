"""How a binary begins: its flags and its help."""

import re
import sys
import unittest.mock

import pytest
from absl import flags
from absl.testing import flagsaver

from tests.fixtures import tables
from tff_shift.binaries import dynamic_personalization
from tff_shift.binaries import evolving
from tff_shift.binaries import guidance
from tff_shift.binaries import online_adaptation
from tff_shift.command_line import output_folder
from tff_shift.command_line import program


@pytest.mark.parametrize(
  "binary, own, hyperparameter",
  [
    (evolving, "angle_step", "prototype"),
    (online_adaptation, "timesteps", "eta_min"),
    (guidance, "partition", "lambda_"),
    (dynamic_personalization, "periods", "meta_learning_rate"),
  ],
)
def test_help_lists_the_flags_of_all_parts(
  run_here, capsys, binary, own, hyperparameter
):
  assert run_here(binary, ["--help"]) == 0
  output = capsys.readouterr().out
  assert output.startswith(binary.__doc__.partition("\n")[0])
  # Commands can be copied as they stand.
  assert re.search(r" \\\n      --\w+", output)
  listed = re.findall(r"^  --(?:\[no\])?(\w+):", output, re.MULTILINE)
  assert len(listed) == len(set(listed))
  common = {"algorithm", "output_dir", "resume", "aggregator", "workers"}
  assert {own, hyperparameter} | common <= {*listed}
  # The everyday flags come first, on a screen, then the scenario's own.
  everyday = output[output.index("Everyday flags:") :].partition("\n\n")[0]
  assert re.findall(r"^  --(algorithm|output_dir) ", everyday, re.MULTILINE)
  assert len(everyday.splitlines()) < 24
  assert max(map(len, everyday.splitlines())) <= 80
  assert output.index(everyday) < output.index(f"--{own}:")
  assert listed.index(own) < listed.index("algorithm")


def test_help_says_which_algorithms_have_another_default(run_here, capsys):
  assert run_here(evolving, ["--help"]) == 0
  output = " ".join(capsys.readouterr().out.split())
  assert re.search(
    r"fed_prox: 1\.0; fed_prox_ft: 0\.01\b[^(]* \([^)]*fed_prox, fed_prox_ft",
    output,
  )
  # All that have it agree.
  assert "Default: last_layer. (" in output


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
  tables.literals("""
"--resume", True, "--resume"
"--noresume", False, "--noresume"
"--resume=true", True, "--resume"
"--resume=0", False, "--noresume"
"--resume=auto", "auto", "--resume=auto"
"--resume=Auto", "auto", "--resume=auto"
"""),
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
