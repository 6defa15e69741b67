"""What a binary tells of itself: help, version, configuration, completion."""

import re
import shlex
import subprocess
import sys

import pytest

from tff_shift.binaries import dynamic_personalization
from tff_shift.binaries import evolving
from tff_shift.binaries import guidance
from tff_shift.binaries import online_adaptation
from tff_shift.binaries import predict
from tff_shift.command_line import configuration


@pytest.fixture
def told(run_here, capsys):
  """Returns `told(binary, arguments) -> standard output`."""

  def run(binary, arguments):
    capsys.readouterr()
    assert run_here(binary, arguments) == 0
    return capsys.readouterr().out

  return run


def _listed(text):
  return re.findall(r"^  --(?:\[no\])?([\w.]+):", text, re.MULTILINE)


@pytest.mark.parametrize(
  "binary", [evolving, online_adaptation, guidance, dynamic_personalization]
)
def test_help_is_a_screen_without_the_flags_of_groups(binary, told):
  text = told(binary, "--help")
  assert text.startswith(binary.__doc__.partition("\n")[0])
  # Commands can be copied as they stand.
  assert re.search(r" \\\n      --\w+", text)
  everyday = re.findall(r"^  --(\w+) {2,}\w", text, re.MULTILINE)
  assert {"algorithm", "dataset", "learning_rate", "resume"} <= {*everyday}
  assert len(everyday) <= 30 and not _listed(text)
  assert len(text.splitlines()) <= 50
  assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
  "binary, own, group, hyperparameter",
  [
    (evolving, "angle_step", "data", "prototype"),
    (online_adaptation, "controls", "evaluation", "eta_min"),
    (guidance, "partition", "data", "lambda_"),
    (dynamic_personalization, "periods", "data", "meta_learning_rate"),
  ],
)
def test_groups_have_each_flag_once(binary, own, group, hyperparameter, told):
  everything = _listed(told(binary, "--help=all"))
  of_groups = {
    name: _listed(told(binary, f"--help={name}"))
    for name in configuration.GROUPS
    # Nothing selects settings of adaptation.
    if binary is not online_adaptation or name != "selection"
  }
  assert len(everything) == len({*everything})
  together = [flag for listed in of_groups.values() for flag in listed]
  assert sorted(together) == sorted(everything)
  assert own in of_groups[group]
  assert hyperparameter in of_groups["training"]
  expected = {
    "dataset": "data",
    "num_clients": "data",
    "model": "model",
    "rounds": "training",
    "metrics": "evaluation",
    "select": "selection",
    "aggregator": "privacy",
    "workers": "execution",
    "output_dir": "output",
  }
  for flag, name in expected.items():
    if flag in everything:
      assert flag in of_groups[name]


def test_flags_have_their_default_and_choices(told):
  text = " ".join(told(evolving, "--help=training").split())
  assert re.search(
    r"fed_prox: 1\.0; fed_prox_ft: 0\.01\b[^(]* \([^)]*fed_prox, fed_prox_ft",
    text,
  )
  # All that have it agree.
  assert "Default: last_layer. (" in text
  assert re.search(r"--optimizer: .* \(one of sgd, adam, adamw\)", text)
  chosen = _listed(told(evolving, "--algorithm=moon --help=training"))
  assert {"mu", "temperature", "rounds"} <= {*chosen}
  assert "prototype" not in chosen


def test_a_binary_of_few_flags_lists_them_at_once(told):
  assert {"model", "input", "output"} <= {*_listed(told(predict, "--help"))}


@pytest.mark.parametrize(
  "flag, message",
  [
    ("--help=dat", "--help must be one of data, .*; did you mean data?"),
    ("--completion=fish", "--completion must be one of bash, zsh"),
  ],
)
def test_what_there_is_not_is_refused(flag, message, refused):
  assert re.search(message, refused(evolving, flag))


def test_printed_configuration_is_read_back(told, planned, tmp_path):
  flags = (
    "--algorithm=fed_avg,moon --dataset=circle --learning_rate=1e-5,0.1"
    " --moon.mu=2 --seeds=0,1 --rounds=3 --noforgetting --bounds"
  )
  file = tmp_path / "run.yaml"
  file.write_text(told(evolving, f"{flags} --print_config"))
  plans = [planned(evolving, each) for each in (flags, f"--config={file}")]
  assert plans[0].trials == plans[1].trials
  assert plans[0].configuration == plans[1].configuration
  assert len(plans[0].trials) == 4


@pytest.mark.slow
def test_installed_command_starts_the_binaries():
  def run(*arguments):
    return subprocess.run(
      [sys.executable, "-m", "tff_shift", *arguments],
      capture_output=True,
      text=True,
      check=False,
    )

  assert re.search(
    r"^  online-adaptation +Compares", run().stdout, re.MULTILINE
  )
  assert re.fullmatch(r"tff_shift \d+\.\d+\.\d+\n", run("--version").stdout)
  version = run("online-adaptation", "--version")
  assert version.stdout == run("--version").stdout
  ended = run("evolvin")
  assert (ended.returncode, ended.stdout) == (2, "")
  assert ended.stderr.endswith("did you mean evolving?\n")


@pytest.mark.slow
def test_completion_completes_binaries_and_flags(told):
  script = told(evolving, "--completion=bash")

  def complete(*words):
    text = " ".join(map(shlex.quote, words))
    process = subprocess.run(
      [
        "bash",
        "-c",
        f"{script}\nCOMP_WORDS=({text}); COMP_CWORD="
        f"{len(words) - 1}; _tff_shift; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
      ],
      capture_output=True,
      text=True,
      check=True,
    )
    return process.stdout.split()

  assert complete("tff-shift", "onl") == ["online-adaptation"]
  assert complete("tff-shift", "evolving", "--angle") == ["--angle_step"]
