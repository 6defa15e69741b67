"""Tests of the check at the entrance: what is cast, and what is refused."""

import numpy as np
import pytest

from tff_shift.data import examples

SHAPE = (2, 3)


def check(x, y, **changes):
  """Checks two classes of float32 examples, unless the test says otherwise."""
  expected = {"shape": SHAPE, "dtype": np.float32, "num_classes": 2}
  return examples.checked(x, y, "toy", **(expected | changes))


def refusal(x, y, **changes) -> str:
  with pytest.raises(ValueError) as error:
    check(x, y, **changes)
  assert "\n" not in str(error.value)
  return str(error.value)


def x_of(dtype, size=2):
  return np.arange(size * 6).reshape(size, *SHAPE).astype(dtype)


Y = np.array([0, 1], np.int32)


class TestCasts:
  @pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int32])
  def test_array_of_the_right_type_is_not_copied(self, dtype):
    x = x_of(dtype)
    checked = check(x, Y, dtype=dtype)
    assert isinstance(checked, examples.Examples)
    assert checked.x is x
    assert checked.y is Y

  @pytest.mark.parametrize(
    "given, dtype",
    [
      (np.float64, np.float32),
      (np.float16, np.float32),
      (np.int64, np.uint8),
      (np.int64, np.int32),
      (np.uint8, np.int32),
    ],
  )
  def test_array_of_the_same_kind_is_cast(self, given, dtype):
    checked = check(x_of(given), Y, dtype=dtype)
    assert checked.x.dtype == dtype
    np.testing.assert_array_equal(checked.x, x_of(dtype))

  @pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.int8, np.uint64])
  def test_classes_become_int32(self, dtype):
    checked = check(x_of(np.float32), np.array([1, 0], dtype))
    assert checked.y.dtype == np.int32
    assert checked.y.tolist() == [1, 0]

  def test_wide_floats_are_rounded_to_nearest(self):
    x = np.full((1, *SHAPE), 1 + 2.0**-24 + 2.0**-30)
    # float32 has 23 bits: halfway and a bit more goes up.
    assert np.all(check(x, Y[:1]).x == np.float32(1 + 2.0**-23))

  def test_limits_of_the_integers_fit(self):
    x = np.full((1, *SHAPE), 255)
    x[0, 0, 0] = 0
    np.testing.assert_array_equal(check(x, Y[:1], dtype=np.uint8).x, x)


class TestRefusals:
  @pytest.mark.parametrize(
    "x, changes, message",
    [
      (
        np.zeros((2, 3, 2), np.float32),
        {},
        "x of toy: the shape must be [n, 2, 3], got [2, 3, 2]",
      ),
      (
        np.zeros((2, 2, 3, 1), np.float32),
        {},
        "x of toy: the shape must be [n, 2, 3], got [2, 2, 3, 1]",
      ),
      (
        np.float32(1),
        {"shape": ()},
        "x of toy: the shape must be [n], got []",
      ),
      (
        np.zeros((0, *SHAPE), np.float32),
        {},
        "x of toy: there must be at least one example",
      ),
      (
        x_of(np.uint8),
        {},
        "x of toy: floating-point numbers wanted, to become float32, got uint8",
      ),
      (
        x_of(np.float32),
        {"dtype": np.uint8},
        "x of toy: integers wanted, to become uint8, got float32",
      ),
      (
        x_of(bool),
        {"dtype": np.uint8},
        "x of toy: integers wanted, to become uint8, got bool",
      ),
      (
        x_of(object),
        {},
        "x of toy: floating-point numbers wanted, to become float32, got"
        " object",
      ),
      (
        x_of(np.int64) * 25,
        {"dtype": np.uint8},
        "x of toy: integers must lie in 0..255, the range of uint8, got 0..275",
      ),
      (
        x_of(np.int64) - 1,
        {"dtype": np.uint8},
        "x of toy: integers must lie in 0..255, the range of uint8, got -1..10",
      ),
    ],
  )
  def test_wrong_x_is_named(self, x, changes, message):
    assert refusal(x, Y, **changes) == message

  @pytest.mark.parametrize(
    "value, dtype",
    [
      (np.nan, np.float32),
      (np.inf, np.float32),
      (-np.inf, np.float64),
      (1e39, np.float64),  # float32 ends at 3.4e38.
    ],
  )
  def test_number_that_is_not_finite_is_found(self, value, dtype):
    x = x_of(dtype, size=5)
    x[3, 1, 2] = value
    assert refusal(x, np.zeros(5, np.int32)) == (
      "x of toy: all numbers must be finite as float32, those of example 3 are"
      " not"
    )

  @pytest.mark.parametrize(
    "y, message",
    [
      (
        np.array([0, 1, 1]),
        "y of toy: the shape must be [2], a class for each example, got [3]",
      ),
      (
        np.array([[0], [1]]),
        "y of toy: the shape must be [2], a class for each example, got [2, 1]",
      ),
      (
        np.array([0.0, 1.0]),
        "y of toy: integers wanted, to become int32, got float64",
      ),
      (
        np.array([0, 2]),
        "y of toy: classes must lie in 0..1, got 2 for example 1",
      ),
      (
        np.array([-1, 0]),
        "y of toy: classes must lie in 0..1, got -1 for example 0",
      ),
      # Cast without a look, it would be class 0.
      (np.array([0, 2**32]), "y of toy: integers must lie in -2147483648.."),
    ],
  )
  def test_wrong_y_is_named(self, y, message):
    assert refusal(x_of(np.float32), y).startswith(message)
