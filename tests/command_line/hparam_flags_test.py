"""Tests of the flags of hyper-parameters."""

import dataclasses

from tff_shift.command_line.flags import hparam_flags
from tff_shift.learning import hyperparameters


def field(text: str) -> dataclasses.Field:
  @dataclasses.dataclass(frozen=True)
  class HParams(hyperparameters.HParams):
    mu: float = hyperparameters.hparam(0.0, text)

  (found,) = dataclasses.fields(HParams)
  return found


def test_every_meaning_is_told_and_the_commonest_first():
  by_owner = {"moon": field("Contrast."), "a": field("Term."), "b": field("C.")}
  by_owner["d"] = field("Term.")
  assert (
    hparam_flags._meanings(by_owner) == "Term. For moon: Contrast. For b: C."
  )
  assert hparam_flags._meanings({"a": field("Term.")}) == "Term."
