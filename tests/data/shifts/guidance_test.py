import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tff_shift.data import datasets
from tff_shift.data import table
from tff_shift.data.images import color_transforms
from tff_shift.data.shifts import guidance


def load(dataset="digits", **changes):
  """Loads with few, small clients unless the test asks for others."""
  arguments = {
    "num_clients": 8,
    "partition": "dirichlet_0.3",
    "intensity": "high",
    "seed": 0,
  }
  return guidance.load_guidance(dataset, **(arguments | changes))


def class_counts(examples, num_classes=10):
  """Returns `[clients, classes]`, how many of each class a client has."""
  return np.stack(
    [np.bincount(each.y, minlength=num_classes) for each in examples]
  )


class TestParsePartition:
  @pytest.mark.parametrize(
    "text, expected",
    [
      ("dirichlet_0.3", ("dirichlet", 0.3)),
      ("dirichlet_1e-2", ("dirichlet", 0.01)),
      ("dirichlet_inf", ("dirichlet", math.inf)),
      ("25_spc", ("shards", 25)),
    ],
  )
  def test_reads_kind_and_number(self, text, expected):
    assert guidance.parse_partition(text) == expected

  @pytest.mark.parametrize(
    "text",
    [
      *("", "dirichlet_0", "dirichlet_nan", "spc_5", "0_spc", "5_spc\n"),
    ],
  )
  def test_refuses_anything_else_in_one_line(self, text, refusal):
    message = refusal(guidance.parse_partition, text)
    assert message.startswith("partition must be dirichlet_<alpha> or <S>_spc")
    assert message.endswith(repr(text))


class TestDigits:
  @pytest.fixture(scope="class")
  def dataset(self):
    return load()

  @pytest.mark.slow
  @pytest.mark.parametrize("partition_name", ["dirichlet_0.3", "5_spc"])
  def test_every_digit_is_held_once_under_its_clients_transform(
    self, partition_name
  ):
    whole = datasets.load("digits")
    dataset = load(partition=partition_name, num_clients=3)
    assert len(dataset.train) == len(dataset.test) == 3
    assert dataset.schema.classes == whole.schema.classes
    assert dataset.transforms == color_transforms.pool(3)
    images = color_transforms.tint(whole.x)
    held = []
    for client, transform in enumerate(dataset.transforms):
      expected = {
        image.tobytes(): position
        for position, image in enumerate(
          color_transforms.apply(images, transform)
        )
      }
      for examples in (dataset.train[client], dataset.test[client]):
        positions = [expected[image.tobytes()] for image in examples.x]
        assert_array_equal(examples.y, whole.y[positions])
        held += positions
    assert sorted(held) == list(range(len(whole.y)))
    assert_array_equal(dataset.sample, images[0])

  def test_validation_is_held_out_of_training(self, dataset, refusal):
    held_out = guidance.held_out_validation(dataset, 0)
    assert held_out.transforms == dataset.transforms
    for client, whole in enumerate(dataset.train):
      parts = [side[client] for side in held_out[:2]]
      assert len(parts[1].y) == round(0.2 * len(whole.y))
      expected, actual = (
        sorted(
          (image.tobytes(), label)
          for part in examples
          for image, label in zip(*part, strict=True)
        )
        for examples in ([whole], parts)
      )
      assert actual == expected
    few = type(dataset.train[1])(*(part[:2] for part in dataset.train[1]))
    lacking = dataset._replace(train=(dataset.train[0], few))
    told = refusal(guidance.held_out_validation, lacking, 0)
    assert told.startswith("client 1 would have no validation")

  def test_thirty_percent_are_for_testing(self, dataset):
    for parts, fraction in ((dataset, 0.3), (load(test_fraction=0.1), 0.1)):
      for train, test in zip(*parts[:2], strict=True):
        assert len(test.y) == round(fraction * (len(train.y) + len(test.y)))

  def test_sizes_are_uneven_by_dirichlet_and_even_by_shards(self, dataset):
    sizes = {
      name: class_counts(found.train).sum(axis=1)
      for name, found in (
        ("dirichlet_0.3", dataset),
        ("5_spc", load(partition="5_spc")),
        ("dirichlet_inf", load(partition="dirichlet_inf")),
      )
    }
    assert sizes["dirichlet_0.3"].max() > 1.5 * sizes["dirichlet_0.3"].min()
    assert np.ptp(sizes["5_spc"]) <= 5
    assert np.ptp(sizes["dirichlet_inf"]) <= 1

  def test_max_examples_keep_the_classes_proportions(self):
    dataset = load(max_examples=400)
    counts = class_counts(dataset.train + dataset.test).sum(axis=0)
    assert counts.sum() == 400
    # The classes have 174 to 183 of the 1,797 digits: 38.7 to 40.7 of 400.
    assert 38 <= counts.min() <= counts.max() <= 41
    everything = load(max_examples=5000)
    assert class_counts(everything.train + everything.test).sum() == 1797

  def test_digits_are_moved_far_unless_none_is_asked_for(self, dataset):
    default = load(intensity=None)
    assert default.transforms == dataset.transforms
    assert_array_equal(default.train[3].x, dataset.train[3].x)
    plain = load(intensity="none")
    assert plain.sample.shape == (28, 28, 1)
    for one, other in zip(plain.test, dataset.test, strict=True):
      assert_array_equal(one.y, other.y)
    own = {each.tobytes() for each in datasets.load("digits").x}
    assert {each.tobytes() for each in plain.train[5].x} <= own

  @pytest.mark.parametrize(
    "changes, message",
    [
      ({"dataset": "svhn"}, "dataset must be one of "),
      ({"partition": "iid"}, "partition must be"),
      ({"partition": None}, "partition None does not go with digits: it"),
      ({"intensity": "max"}, "intensity must be"),
      ({"max_examples": 0}, "max_examples must be "),
      (
        {"max_examples": 50},
        "8 clients of at least 10 examples need 80, got 50",
      ),
      (
        {"partition": "3_spc", "max_examples": 24, "test_fraction": 0.1},
        "client 0 would have no test ",
      ),
    ],
  )
  def test_invalid_arguments_are_refused(self, changes, message, refusal):
    assert refusal(load, **changes).startswith(message)


@pytest.mark.parametrize("partition_name", ["4_spc", "dirichlet_0.3"])
def test_cifar20_fine_labels_decide_who_gets_what(partition_name, monkeypatch):
  # 100 fine classes of 8, five of which make up a superclass.
  fine = np.tile(np.arange(100, dtype=np.int32), 8)
  x = np.zeros((800, 1, 1, 3), np.uint8)
  names = tuple(map(str, range(100)))
  tables = {
    "cifar100": table.of_classes(x, fine, names),
    "cifar20": table.of_classes(x, fine // 5, names[:20]),
  }
  monkeypatch.setattr(datasets, "load", lambda name, **_: tables[name])
  by_fine, by_superclass = (
    load(dataset, num_clients=5, partition=partition_name)
    for dataset in ("cifar100", "cifar20")
  )
  assert by_superclass.schema.classes == names[:20]
  for one, other in zip(
    by_fine.train + by_fine.test,
    by_superclass.train + by_superclass.test,
    strict=True,
  ):
    assert_array_equal(one.y // 5, other.y)
