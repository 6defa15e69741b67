"""Tests of the check at the entrance: what is cast, and what is refused."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tff_shift.data import examples
from tff_shift.data import from_python
from tff_shift.data import table
from tff_shift.data.shifts import evolving

SHAPE = (2, 3)


def check(x, y, **changes):
  """Checks two classes of float32 examples, unless the test says otherwise."""
  expected = {"shape": SHAPE, "dtype": np.float32, "num_classes": 2}
  return examples.checked(x, y, "toy", **(expected | changes))


def x_of(dtype, size=2):
  return np.arange(size * 6).reshape(size, *SHAPE).astype(dtype)


Y = np.int32([0, 1])


def test_names_that_differ_in_case_are_reported():
  with pytest.warns(examples.DataWarning, match="'Yes' and 'yes' differ only"):
    examples.check_names(["Yes", "yes"], "y", str, warns_of_case=True)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    examples.check_names(["Yes", "yes", "2", "\u00b2"], "y", str)


@pytest.mark.parametrize(
  "column, message",
  [
    # In steps of 128: 1,699,999,872 + 128 is the nearest number of all.
    (1.7e9 + np.arange(60), "column 1 apart (60 values, 1 left); subtract a"),
    (1.7e9 + np.arange(600), "column 1 apart (600 values, 6 left); subtract"),
    # Steps of 128 are 1 % of a deviation of 3,700: 12,900 / sqrt(12).
    (1.7e9 + np.arange(12_000), "column 1 apart (12,000 values,"),
    (1.7e9 + np.arange(30_000), None),
    (np.full(9, 0.1), None),
    (np.array([0.1, 0.1 + 1e-16]), None),
    (np.arange(9) / 10, None),
  ],
)
def test_precision_of_float32(column, message, refusal):
  x = np.stack([np.zeros(len(column)), column], axis=1)
  parts = [x[::2], x[1::2]]
  if message is None:
    examples.check_precision(parts, "x")
    return
  told = refusal(examples.check_precision, parts, "x")
  assert told.startswith(f"x: float32 cannot tell the values of {message}")
  assert told.endswith("minimum 1700000000")


class TestCasts:
  @pytest.mark.parametrize(
    "given, dtype",
    [
      *((dtype, dtype) for dtype in (np.uint8, np.float32, np.int32)),
      (np.float64, np.float32),
      (np.int64, np.uint8),
      (np.uint8, np.int32),
    ],
  )
  def test_only_arrays_of_another_type_are_cast(self, given, dtype):
    x = x_of(given)
    checked = check(x, Y, dtype=dtype)
    assert checked.x.dtype == dtype
    assert_array_equal(checked.x, x)
    assert (checked.x is x) == (given == dtype)
    assert checked.y is Y

  def test_numbers_are_as_large_as_their_squares_are_finite(self, refusal):
    largest = np.float32(2**64 * (1 - 2.0**-24))  # Its square is below 2**128.
    x = np.full((2, *SHAPE), largest, np.float32)
    assert check(x, Y).x is x
    x = x_of(np.float64)
    x[1].flat[0] = -3e38
    assert refusal(check, x, Y) == (
      "x of toy: numbers must lie between -1.8e+19 and 1.8e+19, so that their"
      " squares are finite as float32, got -3e+38 in example 1"
    )
    # What is asked of a model may be as large as it likes.
    x = np.float32([[0, 0], [0, 2e19]])
    assert examples.checked_array(x, "it", shape=(2, 2), dtype=np.float32) is x
    told = refusal(check, x, Y, shape=(2,))
    assert told.endswith("got 2e+19 in column 1 of example 1")

  def test_limits_of_the_integers_fit(self):
    x = np.full((1, *SHAPE), 255)
    x[0, 0, 0] = 0
    assert_array_equal(check(x, Y[:1], dtype=np.uint8).x, x)


def check_sizes(sizes, num_domains=None):
  return examples.checked_sizes(sizes, 5, "toy", num_domains)


def test_sizes_that_add_up_are_cast():
  sizes = np.int32([0, 3, 2])
  assert check_sizes(sizes) is sizes
  cast = check_sizes([2, 3], num_domains=2)
  assert cast.dtype == np.int32 and cast.tolist() == [2, 3]


def test_array_is_cast_and_a_scalar_is_one():
  cast = examples.checked_array([1.0, 2.0], "r", shape=(2,), dtype=np.float32)
  assert cast.dtype == np.float32 and cast.tolist() == [1, 2]
  number = np.int32(3)
  assert number is examples.checked_array(
    number, "id", shape=(), dtype=np.int32
  )


def checked_pair(length):
  return examples.checked_array(length, "r", shape=(2,), dtype=np.float32)


def zeros(*shape):
  return np.zeros(shape, np.float32)


RANGE = "integers must lie in 0..255, the range of uint8, got"
ADD_UP = "numbers of at least 0 wanted that add up to 5"


@pytest.mark.parametrize(
  "named, x, options, message",
  [
    ("x", zeros(2, 3, 2), {}, "the shape must be [n, 2, 3], got [2, 3, 2]"),
    ("x", np.float32(1), {"shape": ()}, "the shape must be [n], got []"),
    ("x", zeros(0, *SHAPE), {}, "there must be at least one example"),
    (
      "x",
      x_of(np.uint8),
      {},
      "floating-point numbers wanted, to become float32, got uint8",
    ),
    (
      "x",
      x_of(bool),
      {"dtype": np.uint8},
      "integers wanted, to become uint8, got bool",
    ),
    ("x", x_of(int) * 25, {"dtype": np.uint8}, f"{RANGE} 0..275"),
    ("x", x_of(int) - 1, {"dtype": np.uint8}, f"{RANGE} -1..10"),
    # A class for each example.
    ("y", zeros(3, *SHAPE), {}, "the shape must be [3], a class for each exam"),
    (
      "y",
      x_of(float),
      {"y": [0, 2]},
      "classes must lie in 0..1, got 2 for exa",
    ),
    ("y", x_of(float), {"y": [-1, 0]}, "classes must lie in 0..1, got -1 for "),
    ("y", x_of(float), {"y": [0, 2**32]}, "integers must lie in -2147483648.."),
  ],
)
def test_wrong_examples_are_named(named, x, options, message, refusal):
  y = np.array(options.pop("y", Y))
  told = refusal(check, x, y, **options)
  assert told.startswith(f"{named} of toy: {message}")


@pytest.mark.parametrize(
  "value, dtype",
  [
    (np.nan, np.float32),
    (-np.inf, np.float64),
    (1e39, np.float64),  # float32 ends at 3.4e38.
  ],
)
def test_number_that_is_not_finite_is_found(value, dtype, refusal):
  x = x_of(dtype, size=5)
  x[3, 1, 2] = value
  assert refusal(check, x, np.zeros(5, np.int32)) == (
    "x of toy: all numbers must be finite as float32, got"
    f" {x[3, 1, 2]} in example 3"
  )


@pytest.mark.parametrize(
  "function, arguments, message",
  [
    (
      check_sizes,
      ([2, 2],),
      "wanted that add up to 5, the number of exa",
    ),
    (check_sizes, ([6, -1],), ADD_UP),
    # As 32-bit integers, the sum would wrap around to 5.
    (check_sizes, ([2**31 - 1, 2**31 - 1, 7],), ADD_UP),
    (check_sizes, ([5], 2), "the shape must be [2], got [1]"),
    (check_sizes, ([2.5, 2.5],), "integers wanted, to become int32, got"),
    (checked_pair, ([[1.0], [2.0, 3.0]],), "r: an array is wanted, got list"),
    (checked_pair, ([1, 2],), "r: floating-point numbers wanted"),
    (
      examples.check_pool,
      (examples.Examples(zeros(3, 1), Y),),
      "got 3 examples and 2 classes",
    ),
  ],
)
def test_other_wrong_arrays_are_named(function, arguments, message, refusal):
  assert message in refusal(function, *arguments)


class TestMasks:
  @pytest.mark.parametrize("mask", [False, np.zeros((2, 2), bool)])
  def test_array_that_masks_nothing_is_its_data(self, mask):
    data = np.arange(4, dtype=np.float32).reshape(2, 2)
    found = examples.as_array(np.ma.array(data, mask=mask), "x")
    assert type(found) is np.ndarray and np.shares_memory(found, data)
    assert_array_equal(found, data)

  @pytest.mark.parametrize(
    "nest", [lambda x: x, lambda x: [[row] for row in x], lambda x: (x,)]
  )
  def test_masked_value_is_found_and_told(self, nest):
    x = np.ma.masked_equal(np.array([[1, 2], [3, -999]]), -999)
    with pytest.raises(ValueError, match=r"^x of a: 1 of \d values are masked"):
      examples.as_array(nest(x), "x of a")
    assert_array_equal(
      examples.as_array(nest(x.filled(0)), "x"), nest(x.filled(0))
    )

  def test_all_entrances_refuse_it(self, refusal):
    def assemble(x, y):
      domains = (evolving.Domain(x, y, "0"), evolving.Domain(x, y, "1"))
      schema = table.Schema(classes=tuple("ab"))
      dataset = evolving.EvolvingDataset("own", domains, schema)
      return evolving.assemble_clients(dataset, num_clients=1)

    x, y = np.zeros((3, 2), np.float32), np.zeros(3, np.int32)
    masked_x, masked_y = (np.ma.array(a, mask=a == 0) for a in (x, y))
    for entrance in (
      lambda x, y: check(x, y, shape=(2,)),
      lambda x, y: examples.check_pool(examples.Examples(x, y)),
      lambda x, y: table.validate(table.of_classes(x, y, "ab"), "a"),
      lambda x, y: from_python.from_arrays("guidance", [(x, y)]),
      assemble,
    ):
      entrance(x, y)
      for given in ((masked_x, y), (x, masked_y)):
        assert "values are masked" in refusal(entrance, *given)


class TestCopies:
  X = np.float32([[0, 1], [2, 3], [0, 1], [2, 3.5]])

  def test_examples_are_those_of_the_first_that_is_the_same(self):
    assert examples.copies(self.X).tolist() == [0, 1, 0, 3]
    # A class makes examples differ, where it is given.
    assert examples.copies(self.X, np.array([0, 0, 1, 0])).tolist() == [
      0,
      1,
      2,
      3,
    ]
    assert examples.copies(self.X[:0]).tolist() == []

  def test_test_examples_that_are_trained_on_are_counted(self):
    train, test = [self.X[:1], self.X[1:2]], [self.X[2:], self.X[:2]]
    # The third, the first and the second; the fourth is another.
    assert examples.num_trained_on(train, test) == 3
    assert examples.num_trained_on(train[:1], [self.X[3:]]) == 0


class TestUnscaled:
  NAMES = ("age", "income")

  @pytest.mark.parametrize(
    "x, expected",
    [
      ([[1, 2], [2, 1]], ""),
      ([[1, 100], [3, -90]], ""),
      ([[1, 101], [2, 1]], "are as large as 101 (income)"),
      ([[-3e4, 2], [2, 1]], "are as large as 3e+04 (age)"),
      (
        [[0.001, 1], [0.002, 2]],
        "differ in magnitude: income has standard deviation 0.5, age 0.0005",
      ),
      # A constant has no scale.
      ([[7, 1], [7, 50]], ""),
    ],
  )
  def test_features_that_hinder_training_are_named(self, x, expected):
    x = np.float32(x)
    for parts in ([x], [x[:1], x[:0], x[1:]]):
      assert examples.unscaled(parts, self.NAMES) == expected

  def test_images_and_words_have_no_scale_of_their_own(self):
    assert examples.unscaled([np.full((2, 3), 255, np.uint8)]) == ""
    assert examples.unscaled([np.full((2, 3), 5000, np.int32)]) == ""
