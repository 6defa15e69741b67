"""Extreme values of every numeric flag, and texts that no terminal may get."""

import contextlib
import io
import math
import warnings

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from tff_shift.binaries import dynamic_personalization
from tff_shift.binaries import evolving
from tff_shift.binaries import guidance
from tff_shift.binaries import online_adaptation
from tff_shift.binaries import report
from tff_shift.command_line import common_flags
from tff_shift.command_line.flags import hparam_flags
from tff_shift.command_line.tuning import trials

FLAGS = flags.FLAGS

SMALL = {
  evolving: """
    --dataset=rotated_digits --num_domains=3 --max_examples_per_domain=40
    --num_clients=2 --rounds=2
  """,
  online_adaptation: """
    --dataset=digits --model=mlp --model_width=4 --timesteps=2 --num_clients=2
    --samples_per_step=5 --initial_examples=6
  """,
  guidance: """
    --dataset=digits --max_examples=300 --num_clients=2 --rounds=2 --model=mlp
    --model_width=4
  """,
  dynamic_personalization: """
    --dataset=digits --max_examples=600 --num_clients=2 --rounds=1
    --period_size=20 --periods=1 --test_distributions=iid --model=mlp
    --model_width=4 --representation=pca --distance_threshold=1
  """,
}
# What a flag has to have beside it.
BESIDE = {
  "noise_multiplier": "--aggregator=dp --clipping=fixed",
  "dp_delta": "--aggregator=dp --clipping=fixed",
  "clipping_norm": "--aggregator=robust --clipping=fixed",
  "worker_timeout": "--executor=remote --workers=localhost:1",
}
EXTREMES = {
  flags.FloatParser: ("nan", "inf", "1e308", "1e-320", "-0.0"),
  flags.IntegerParser: ("-1", str(10**18), "9" * 400, "-0"),
}


@pytest.fixture(params=list(SMALL), ids=lambda binary: binary.planning.SCENARIO)
def binary(request):
  """The module of a binary's flags, which are defined for the test."""
  with flagsaver.flagsaver():
    request.param.planning.Configuration.define_flags()
    yield request.param


def numeric_flags(of_hparams):
  """Yields (flag, extreme values), those of hyper-parameters or the others."""
  for module, defined in FLAGS.flags_by_module_dict().items():
    for flag in defined if module.startswith("tff_shift.") else ():
      parser = flag.parser
      if isinstance(parser, hparam_flags._ListParser) != of_hparams:
        continue
      parser = getattr(parser, "_parser", parser)
      for kind, values in EXTREMES.items():
        if isinstance(parser, kind):
          yield flag, values


def refusal(action, *texts):
  """Returns the line of a refusal, or None if the action is done."""
  FLAGS.unparse_flags()
  for name in FLAGS:
    FLAGS[name].unparse()
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      FLAGS(["binary", *" ".join(texts).split()])
      action()
  except (common_flags.UsageError, flags.Error) as error:
    return str(error)
  return None


def algorithm_of(binary, flag=None):
  owners = hparam_flags.owners(binary.planning.SCENARIO).get(flag)
  if owners:
    return owners[0]
  return "fed_avg" if binary is not online_adaptation else "fix_lr"


@pytest.mark.slow
def test_extreme_numbers_make_a_plan_or_a_line(binary):
  seen = 0
  for flag, values in numeric_flags(of_hparams=False):
    for value in values:
      # That 0 is 0 takes a plan each time.
      if float(value) == 0:
        continue
      small = SMALL[binary]
      if flag.name == "threshold_quantile":
        small = small.replace("--distance_threshold=1", "")
      given = (
        *(small, f"--algorithm={algorithm_of(binary)}"),
        *(BESIDE.get(flag.name, ""), f"--{flag.name}={value}"),
      )

      def plan():
        binary.planning.make_plan()
        common_flags.executor()

      line = refusal(plan, *given)
      seen += 1
      if line is None:
        # What no number is, or none that a graph holds, is nobody's plan.
        assert value != "nan", given
        assert math.isfinite(float(value)) or flag.name == "distance_threshold"
      else:
        # A part is that of a larger whole, "fraction".
        assert flag.name.rpartition("public_")[2] in line, given
        assert len(line) < 600 and len(line.splitlines()) == 1, given
  assert seen > 50


def test_extreme_hyperparameters_are_refused_by_name(binary):
  seen = 0
  for flag, values in numeric_flags(of_hparams=True):
    for value in values:
      algorithm = algorithm_of(binary, flag.name)
      line = refusal(
        lambda: trials.chosen(binary.planning.SCENARIO),
        f"--algorithm={algorithm} --{flag.name}={value}",
      )
      seen += 1
      if line is None:
        # All that is taken is taken as it is.
        assert float(value) == 0 or value == "-1", (flag.name, value)
      else:
        assert f"--{flag.name}=" in line and len(line) < 600, line
        assert len(line.splitlines()) == 1
  assert seen > 50


ESCAPE = "\x1b[2J"


def assert_no_escape(text):
  # Progress of a terminal begins lines anew.
  found = {each for each in text if not each.isprintable()}
  assert found <= {"\n"}, found


@pytest.mark.parametrize(
  "argument",
  [
    f"--{ESCAPE}=1",
    f"{ESCAPE}",
    *(f"--dataset={ESCAPE}", f"--algorithm={ESCAPE}", f"--rounds={ESCAPE}"),
    *(f"--optimizer={ESCAPE}", f"--import={ESCAPE}.py"),
    *(f"--model={ESCAPE}.py:build", f"--output_dir={ESCAPE}\0"),
    *("--output_dir=not\udc80utf8", "--import=not\udc80utf8.py"),
    *(f"--preset={ESCAPE}", f"--workers={ESCAPE}", f"--flagfile={ESCAPE}"),
  ],
)
def test_refusal_shows_no_control_character(run_here, capsys, argument):
  assert run_here(evolving, [SMALL[evolving], argument]) == 2
  output, errors = capsys.readouterr()
  assert_no_escape(output + errors)
  assert errors.count("\n") == 1


@pytest.mark.long
def test_names_of_any_signs_run_and_draw(run, drawn_figures, tmp_path):
  classes = ["$0_$", "\\frac{", f"{ESCAPE}\r\n", "_", "\u0939", "x" * 300]
  file = tmp_path / f"$a_{{b}}$ \\frac {ESCAPE} {'z' * 200}.npz"
  y = np.arange(240) % len(classes)
  np.savez(
    file,
    x=np.random.default_rng(0).integers(0, 256, (240, 8, 8, 1), np.uint8),
    y=y,
    class_names=np.array(classes),
    client=np.array([f"{ESCAPE}$c_{name}" for name in classes])[y[::-1]],
  )
  flags = "--algorithm=fed_drm --rounds=1 --model=mlp --model_width=4"
  with drawn_figures("class_counts"), warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)
    name = f"{ESCAPE} $run_$"
    ended = run(guidance, f"--dataset={file}", flags, folder=name)
  assert_no_escape(ended.output + ended.errors)
  figure = ended.folder / "figures" / "class_counts.png"
  assert figure.stat().st_size > 10_000
  page = run(report, ended.folder, folder="page", takes_arguments=True)
  assert_no_escape(page.output + page.errors)
