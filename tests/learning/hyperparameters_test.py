"""Tests of hyper-parameters: which values are allowed, and what is said."""

import dataclasses
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tff_shift.learning import hyperparameters
from tff_shift.learning.hyperparameters import hparam
from tff_shift.learning.hyperparameters import LocalHParams


@dataclasses.dataclass(frozen=True)
class Every(hyperparameters.HParams):
  """A field of each kind."""

  word: str = hparam("one", "A word.", choices=("one", "two"))
  flag: bool = hparam(False, "A switch.")
  count: int = hparam(3, "A number of things.", minimum=1, maximum=7)
  share: float = hparam(0.5, "A share.", minimum=0, maximum=1)
  rate: float = hparam(0.1, "A rate.", minimum=0, exclusive_minimum=True)
  number: float = hparam(0.0, "Any number.")


def refusal(hparams) -> str:
  with pytest.raises(ValueError) as error:
    hyperparameters.validate(hparams)
  return str(error.value)


# The word and the field that are refused, and how the line goes on.
OTHERS = {
  "word": ["One", None, 1],
  "flag": [0, "True", None, np.int64(1)],
  "count": [
    *(8, 2.0, "2", None, math.nan, True, False),
    *(np.int64(8), np.float64(2.0), np.bool_(True), np.array([3])),
  ],
  "share": [
    *(-1e-9, 1 + 1e-9, "0.5", None, 1j, True, np.float32(1.5)),
    *(math.nan, math.inf),
  ],
  "rate": [-1, False, np.float64(np.nan)],
  "number": [True, math.nan, -math.inf],
}


class TestMessages:
  @pytest.mark.parametrize(
    "name, value, limits",
    [
      ("word", "three", "one of one, two"),
      ("flag", 1, "True or False"),
      ("count", 0, "an integer at least 1 and at most 7"),
      ("share", 1.5, "a number at least 0 and at most 1"),
      ("rate", 0, "a number above 0"),
      ("number", math.nan, "a number"),
    ],
  )
  def test_refusal_names_field_value_and_what_is_allowed(
    self, name, value, limits
  ):
    assert refusal(Every(**{name: value})) == (
      f"{name}={value!r} is not allowed: it must be {limits}"
    )

  @pytest.mark.parametrize(
    "hparams, message",
    [
      ({"count": 3}, "hparams={'count': 3} is not"),
      # The first bad field is named.
      (Every(count=8, share=2.0), "count=8 "),
      (LocalHParams(local_epochs=-1), "local_epochs=-1 "),
      (LocalHParams(learning_rate=0.0), "learning_rate=0.0 "),
      (LocalHParams(momentum=1.1), "momentum=1.1 "),
      (LocalHParams(weight_decay=-1e-4), "weight_decay=-0.0001 "),
      (
        LocalHParams(decay_rounds=3, cosine_rounds=4),
        "decay_rounds=3 is not allowed with cosine_rounds=4",
      ),
      (
        LocalHParams(decay_factor=0.5),
        "decay_factor=0.5 is not allowed without decay_",
      ),
      (
        LocalHParams(decay_rounds=1, decay_factor=1.5),
        "decay_factor=1.5 is not al",
      ),
    ],
  )
  def test_starts(self, hparams, message):
    assert refusal(hparams).startswith(message)

  @pytest.mark.parametrize("name", OTHERS)
  def test_values_beyond_the_limits_or_of_other_types_are_refused(self, name):
    for value in OTHERS[name]:
      # Scalars of NumPy are told as Python's.
      told = value.item() if isinstance(value, np.generic) else value
      assert refusal(Every(**{name: value})).startswith(f"{name}={told!r} ")


class TestScalarsOfNumpy:
  def test_are_pythons_own_numbers(self):
    hparams = Every(
      word=np.str_("two"),
      flag=np.bool_(True),
      count=np.arange(5)[4],
      share=np.float32(0.1),
      rate=np.logspace(-2, 0, 3)[0],
      number=np.int8(-3),
    )
    hyperparameters.validate(hparams)
    # The float that a float32 is; with it a run has the same bits.
    assert hparams == Every("two", True, 4, 0.10000000149011612, 0.01, -3)
    values = dataclasses.astuple(hparams)
    assert [type(v) for v in values] == [str, bool, int, float, float, int]

  def test_of_a_field_that_is_replaced(self):
    replaced = dataclasses.replace(Every(), count=np.int64(2))
    assert type(replaced.count) is int


class TestValidate:
  @pytest.mark.parametrize(
    "hparams",
    [
      Every(rate=1.2e-38),
      Every(number=-3.4e38),
      # Without a field there is nothing to refuse.
      hyperparameters.HParams(),
      LocalHParams(momentum=1.0, straggler_ratio=1.0, local_epochs=3),
    ],
  )
  def test_values_within_the_limits_are_taken(self, hparams):
    hyperparameters.validate(hparams)

  @hypothesis.given(
    st.one_of(st.floats(), st.integers(-3, 3)), st.integers(-3, 12)
  )
  def test_the_limits_decide(self, number, count):
    allowed = 1 <= count <= 7 and (
      number == 0 or float(np.finfo(np.float32).tiny) <= number <= 1
    )
    hparams = Every(share=number, count=count)
    if allowed:
      hyperparameters.validate(hparams)
    else:
      refusal(hparams)


class TestWhatGraphsHold:
  # In a graph, where denormal numbers are 0, they would be infinite or 0.
  @pytest.mark.parametrize(
    "name, value",
    [("rate", 1e308), ("rate", 1e-40), ("number", -1e39), ("number", 5e-324)],
  )
  def test_infinite_or_vanishing_float32_is_refused(self, name, value):
    assert refusal(Every(**{name: value})) == (
      f"{name}={value!r} is not allowed: it must be of a size that float32"
      " holds, 1.2e-38 to 3.4e+38"
    )

  @pytest.mark.parametrize("value", [10_000_001, 10**18])
  def test_more_than_can_be_counted_is_refused(self, value):
    assert refusal(LocalHParams(local_epochs=value)) == (
      f"local_epochs={value} is not allowed: it must be at most 10000000"
    )
    hyperparameters.validate(LocalHParams(local_epochs=10_000_000))

  @pytest.mark.parametrize("name", ["count", "number"])
  def test_line_stays_short_for_very_long_numbers(self, name):
    line = refusal(Every(**{name: 10**400}))
    assert line.startswith(f"{name}=1000") and len(line) < 150

  def test_negative_zero_is_zero(self):
    zero = Every(number=-0.0)
    hyperparameters.validate(zero)
    assert math.copysign(1, zero.number) == 1
    assert refusal(Every(rate=-0.0)) == (
      "rate=0.0 is not allowed: it must be a number above 0"
    )

  def test_examples_of_a_round_are_counted_in_int32(self):
    # 2**31 and 2**31 - 2**10.
    assert refusal(LocalHParams(local_steps=2**21, batch_size=2**10)) == (
      "local_steps=2097152 is not allowed with batch_size=1024: their product,"
      " the examples that a client draws in a round, must be below 2147483648"
    )
    hyperparameters.validate(
      LocalHParams(local_steps=2**21 - 1, batch_size=2**10)
    )
    # Then the steps do not count.
    hyperparameters.validate(
      LocalHParams(local_steps=2**21, batch_size=2**10, local_epochs=1)
    )


@dataclasses.dataclass(frozen=True)
class Interval(hyperparameters.HParams):
  """Two fields that are allowed or not depending on each other."""

  low: float = hparam(0.0, "The smaller end.", minimum=0)
  high: float = hparam(1.0, "The larger end.", minimum=0)

  def check_together(self):
    if self.high < self.low:
      raise ValueError(f"high={self.high} must be at least low={self.low}")


def test_values_are_checked_beside_each_other():
  hyperparameters.validate(Interval(low=1.0, high=1.0))
  assert refusal(Interval(low=2.0, high=1.0)) == (
    "high=1.0 must be at least low=2.0"
  )
  # Beforehand each by itself.
  assert refusal(Interval(low=2.0, high=-1.0)).startswith("high=-1.0 is not")


@dataclasses.dataclass(frozen=True)
class _Variants(hyperparameters.HParams):
  variant: str = hyperparameters.variant_hparam("what a program runs")
  choice: str = hyperparameters.switch_hparam(
    "What is chosen", published="first", program="second", others=("third",)
  )


class TestSwitch:
  def test_default_is_that_of_the_variant(self):
    published, program = _Variants(), _Variants(variant="program")
    assert hyperparameters.switch(published, "choice") == "first"
    assert hyperparameters.switch(program, "choice") == "second"

  @pytest.mark.parametrize("choice", ["first", "second", "third"])
  def test_given_choice_counts_with_every_variant(self, choice):
    for variant in ("published", "program"):
      hparams = _Variants(variant=variant, choice=choice)
      hyperparameters.validate(hparams)
      assert hyperparameters.switch(hparams, "choice") == choice

  def test_help_names_the_program_and_both_choices(self):
    _, choice = dataclasses.fields(_Variants)
    assert choice.metadata["help"] == (
      "What is chosen; variant, first (published) or second (program)."
    )
    with pytest.raises(ValueError, match=r"'fourth'.*variant, first, second"):
      hyperparameters.validate(_Variants(choice="fourth"))

  def test_changed_is_what_is_not_the_default(self):
    hparams = _Variants(choice="first")
    assert hyperparameters.is_changed(hparams, "choice")
    assert not hyperparameters.is_changed(hparams, "variant")
