"""Published hyper-parameters: common flags do not replace them in silence."""

import pytest

from tff_shift.binaries import evolving
from tff_shift.binaries import online_adaptation
from tff_shift.command_line.flags import hparam_flags

_CIRCLE = "--dataset=circle --num_clients=2 --rounds=1"
_DIGITS = "--dataset=digits --num_clients=2 --timesteps=2"


def _settings(planned, binary, flags, ask=None):
  plan = planned(binary, flags, ask)
  return {
    (trial.algorithm, *trial.compared.values()): trial.hparams
    for trial in plan.trials
  }


@pytest.mark.parametrize(
  ("algorithms", "flags", "expected"),
  [
    # Of several methods, the published value stays.
    ("fed_nova,fed_prox", "--mu=0.1", {"fed_nova": 0.1, "fed_prox": 1.0}),
    # Unless the flag names the method, or is for it alone.
    (
      "fed_nova,fed_prox",
      "--mu=0.1 --fed_prox.mu=0.2",
      {"fed_nova": 0.1, "fed_prox": 0.2},
    ),
    ("fed_prox", "--mu=0.1", {"fed_prox": 0.1}),
    ("fed_avg,fed_prox", "--mu=0.1", {"fed_prox": 0.1}),
    (
      "fed_prox,moon",
      "--mu=0.1 --moon.mu=2",
      {"fed_prox": 0.1, "moon": 2.0},
    ),
  ],
)
def test_value_of_a_method_in_a_comparison(
  algorithms, flags, expected, planned
):
  found = _settings(
    planned, evolving, [_CIRCLE, f"--algorithm={algorithms}", flags]
  )
  assert expected == {
    name: hparams.mu for (name,), hparams in found.items() if name in expected
  }


def test_several_values_are_a_comparison_of_all_methods(planned):
  flags = "--algorithm=fed_nova,fed_prox --mu=0.1,0.3"
  found = _settings(planned, evolving, [_CIRCLE, flags])
  assert {key: hparams.mu for key, hparams in found.items()} == {
    (name, mu): mu for name in ("fed_nova", "fed_prox") for mu in (0.1, 0.3)
  }


@pytest.mark.slow
def test_methods_of_streams_keep_rate_momentum_and_epochs(planned):
  lines = []

  def ask():
    plan = online_adaptation.planning.make_plan()
    lines.extend(hparam_flags.origins())
    return plan

  flags = (
    "--learning_rate=0.05 --momentum=0.5 --local_steps=3 --shot.weight_decay=0"
  )
  algorithms = "--algorithm=shot,fix_lr,atp,fed_poe"
  found = _settings(
    planned, online_adaptation, [_DIGITS, algorithms, flags], ask
  )
  shot, fix_lr, atp, fed_poe = (
    found[(name,)] for name in ("shot", "fix_lr", "atp", "fed_poe")
  )
  assert (shot.learning_rate, shot.momentum) == (1e-3, 0.9)
  assert shot.weight_decay == 0
  assert (fix_lr.learning_rate, fix_lr.momentum) == (0.05, 0.5)
  assert (atp.learning_rate, atp.local_epochs, fed_poe.local_epochs) == (
    *(0.1, 1, 1),
  )
  assert (fix_lr.local_steps, fix_lr.local_epochs) == (3, 0)
  assert (
    "learning_rate: 0.001 (published) for shot, fed_poe; 0.05"
    " (--learning_rate) for fix_lr; 0.1 (published) for atp"
  ) in lines
  assert any(
    line.startswith("momentum: 0.9 (published) for shot; 0.5 (--momentum) for")
    for line in lines
  )


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (
      "--algorithm=fed_prox,moon --mu=0.1",
      "--mu would replace the published value of fed_prox, moon;"
      " --fed_prox.mu does",
    ),
    (
      "--algorithm=fed_avg --moon.mu=1",
      "--moon.mu: moon is not in --algorithm",
    ),
    (
      "--algorithm=moon --moon.learning_rat=1",
      "no such hyper-parameter; did you mean learning_rate?",
    ),
    ("--algorithm=moon --moon.mu=-1", "--moon.mu=-1.0 is not allowed"),
    ("--algorithm=moon --moon.mu=a", "moon.mu=a"),
  ],
)
def test_flags_that_reach_no_method_are_refused(flags, message, refused):
  assert message in refused(evolving, [_CIRCLE, flags])
