"""Tests of streams: four parts, what moves by eq. 1, and draws by seed."""

import dataclasses
import functools
import warnings

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal

from tff_shift.data import dataset as dataset_lib
from tff_shift.data import datasets
from tff_shift.data import examples as examples_lib
from tff_shift.data import table
from tff_shift.data.datasets import cifar100
from tff_shift.data.images import corruptions
from tff_shift.data.shifts import class_pools
from tff_shift.data.shifts import online_adaptation
from tff_shift.data.shifts import schedules

NUM_CORRUPTIONS = 19
ALL = 10**9


def equal(one, other) -> bool:
  return all(map(np.array_equal, one, other))


class TestLoadOnline:
  @pytest.mark.parametrize(
    "num_train, sizes",
    [
      # 30 % for the streams; 65 %, 15 % and 20 % of the others.
      (None, [68, 16, 21, 45]),
      # The archive's test part is for the streams.
      (100, [65, 15, 20, 50]),
    ],
  )
  def test_parts_share_no_example(self, num_train, sizes, set_labels):
    set_labels(np.arange(150) % 4, num_train=num_train)
    dataset = online_adaptation.load_online_adaptation(
      "mnist", max_pretraining_examples=ALL
    )
    parts = dataset[1:5]
    assert [len(part.y) for part in parts] == sizes
    positions = np.concatenate([part.x[:, 0] for part in parts])
    assert sorted(positions) == list(range(150))
    for part in parts:
      assert_array_equal(part.y, part.x[:, 0] % 4)
    if num_train is not None:
      assert dataset.stream.x.min() == num_train
    assert dataset.name == "mnist"
    assert dataset.schema.classes == ("c0", "c1", "c2", "c3")
    assert_array_equal(dataset.class_distribution, np.full(4, 0.25))
    assert dataset.client_classes is None

  @pytest.mark.parametrize("limit, size", [(None, 32), (7, 7)])
  def test_number_of_pretraining_examples(self, set_labels, limit, size):
    set_labels(np.arange(150) % 4, num_train=100)
    dataset = online_adaptation.load_online_adaptation(
      "mnist", max_pretraining_examples=limit
    )
    assert len(set(dataset.pretraining.x[:, 0])) == size
    assert len(dataset.pretraining.y) == size

  def test_pretraining_has_the_class_distribution_that_is_named(self):
    dataset = online_adaptation.load_online_adaptation(
      "digits", pretraining_distribution="gaussian"
    )
    expected = class_pools.pretraining_distribution("gaussian", 10)
    assert_array_equal(dataset.class_distribution, expected)
    counts = np.bincount(dataset.pretraining.y, minlength=10)
    assert counts.sum() == 409
    # Whole numbers of examples.
    assert np.abs(counts - 409 * expected).max() < 1


class TestRareClasses:
  @pytest.fixture
  def load(self, set_labels, monkeypatch):
    """Returns `load(counts, **options)`, which gives counts and warnings.

    It loads classes with so many examples.
    """
    monkeypatch.setattr(
      online_adaptation,
      "_cut",
      lambda source, positions, *_: np.split(positions, 3 * [source.num_train]),
    )

    def load(counts, **options):
      # The training part is for pre-training, the test part for streams.
      y = np.repeat(np.arange(len(counts)), counts)
      set_labels([*y, *y], len(counts), num_train=len(y))
      with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = online_adaptation.load_online_adaptation("mnist", **options)
      drawn = np.bincount(loaded.pretraining.y, minlength=len(counts))
      return drawn.tolist(), [str(warning.message) for warning in caught]

    return load

  @pytest.mark.parametrize("distribution", ["uniform", "exponential_decay"])
  def test_classes_that_never_occur_change_nothing(self, distribution, load):
    options = {"pretraining_distribution": distribution}
    drawn, warned = load([40, 40, 40, 40], **options)
    shifted, _ = load([0, 40, 40, 0, 40, 40], **options)
    assert shifted == [0, drawn[0], drawn[1], 0, *drawn[2:]]
    assert sum(drawn) > 60
    assert not warned

  @pytest.mark.parametrize(
    "counts, limit, expected, message",
    [
      # Half of 200 is 100, 25 of each class; 13 is more than half of 25.
      ([63, 62, 62, 13], None, [13, 13, 13, 13], None),
      (
        [63, 63, 62, 12],
        None,
        [12, 29, 29, 30],
        "pre-training on 100 examples of mnist: the label distribution uniform"
        " cannot be kept, because 1 of 4 classes have less than half of the"
        " required examples; they give all of theirs (c3: 12 of 25)",
      ),
      (
        [100, 4, 3, 2, 1],
        50,
        [1, 2, 3, 4, 40],
        "(c1: 4 of 10, c2: 3 of 10, c3: 2 of 10, ...)",
      ),
      # 6 of 10: not rare.
      ([60, 60, 6], 30, [6, 12, 12], None),
    ],
  )
  def test_rare_class_gives_all_with_a_warning(
    self, load, counts, limit, expected, message
  ):
    drawn, warned = load(counts, max_pretraining_examples=limit)
    assert sorted(drawn) == expected
    assert len(warned) == (message is not None)
    assert all(line.endswith(message) for line in warned)

  def test_classes_that_occur_are_dealt(self, set_labels):
    set_labels(np.repeat([1, 2, 5, 7], 40), 9)
    found = online_adaptation.load_online_adaptation(
      "mnist", disjoint_clients=2
    )
    dealt = np.concatenate(found.client_classes)
    assert sorted(dealt) == [1, 2, 5, 7]
    assert list(map(len, found.client_classes)) == [2, 2]
    assert_array_equal(
      found.class_distribution, np.isin(np.arange(9), dealt) / 4
    )


class TestInitialExamples:
  @pytest.fixture(scope="class")
  def dataset(self):
    # Classes a, b, c and d have 30, 20, 6 and 4 examples.
    y = np.repeat(np.arange(4, dtype=np.int32), [30, 20, 6, 4])
    pool = examples_lib.Examples(np.arange(60, dtype=np.float32), y)
    return online_adaptation.OnlineAdaptationDataset(
      "toy",
      pool,
      pool,
      pool,
      pool,
      table.Schema(classes=tuple("abcd")),
      np.array([0.4, 0.3, 0.2, 0.1]),
    )

  def test_examples_differ_and_have_the_classes_of_pretraining(self, dataset):
    for number, counts in (
      (20, [8, 6, 4, 2]),
      # 6 and 4 of the last two, which have no more; the other 30 as 4 to 3.
      (40, [17, 13, 6, 4]),
    ):
      drawn = {
        tuple(
          online_adaptation.initial_examples(dataset, number, client, seed).x
        )
        for client in range(3)
        for seed in (0, 1, 1)
      }
      # A function of client and seed.
      assert len(drawn) == 6
      for x in drawn:
        assert len(set(x)) == number
        y = dataset.initial.y[np.array(x, int)]
        assert np.bincount(y).tolist() == counts

  def test_who_holds_fewer_has_all(self, dataset):
    drawn = online_adaptation.initial_examples(dataset, 61, 0, seed=0)
    assert sorted(drawn.x) == list(range(60))
    # Of the even positions, which client 1 holds, 30; of the classes b and d,
    # 10 and 2.
    owned = dataset._replace(initial_client=1 - np.arange(60) % 2)
    dealt = owned._replace(client_classes=(np.array([0, 2]), np.array([1, 3])))
    for each, expected in (
      (owned, range(0, 60, 2)),
      (dealt, [*range(30, 50, 2), 56, 58]),
    ):
      drawn = online_adaptation.initial_examples(each, 100, 1, seed=0)
      assert sorted(drawn.x) == list(expected)
      assert online_adaptation.num_labelled(each, 1) == len(drawn.y)

  def test_client_without_labelled_example_is_refused(self, dataset, refusal):
    dataset = dataset._replace(initial_client=np.zeros(60, int))
    for function in (
      lambda: online_adaptation.initial_examples(dataset, 5, 1, 0),
      lambda: online_adaptation.num_labelled(dataset, 1),
    ):
      assert refusal(function) == (
        "client 1 has no labelled example of its classes among the 60 from"
        " before deployment"
      )


# Class sizes far from uniform: what is drawn is not what the pool has.
TOY_Y = np.repeat(np.arange(3, dtype=np.int32), [5, 20, 75])
TOY = examples_lib.Examples(np.arange(100, dtype=np.float32), TOY_Y)


def make_streams(omega, pool=TOY, **options) -> online_adaptation.Streams:
  options = {"num_clients": 4, "samples_per_step": 12, "seed": 6, **options}
  return online_adaptation.Streams(pool, 3, np.array(omega), **options)


def assert_frequencies(y, distribution):
  """Each count is binomial; its tail is not below that of five deviations.

  Exact: one of 2000 examples of a class of probability 2e-6 is not rare.
  """
  counts = np.bincount(y, minlength=len(distribution))
  binomial = scipy.stats.binom(len(y), distribution)
  tails = np.minimum(binomial.cdf(counts), binomial.sf(counts - 1))
  assert np.all(tails >= scipy.stats.norm.sf(5)), (counts, distribution)


class TestLabelShift:
  def test_batch_is_a_pure_function_of_seed_client_and_step(self):
    omega = [0, 0.5, 0.5, 0.5]
    found = make_streams(omega)
    first = found.batch(2, 1)
    for client in range(4):
      found.batch(client, 3)
    assert equal(first, found.batch(2, 1))
    drawn = {
      tuple(make_streams(omega, seed=seed).batch(client, timestep).x)
      for seed in range(2)
      for client in range(4)
      for timestep in range(1, 4)
    }
    assert len(drawn) == 24


@pytest.fixture(scope="module")
def images():
  """Six images that all differ, and their classes."""
  x = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), np.uint8)
  return examples_lib.Examples(x, np.int32([0, 0, 1, 1, 2, 2]))


def make_covariate_streams(omega, pool, **options) -> online_adaptation.Streams:
  return make_streams(omega, pool, shift_kind="covariate", **options)


def positions_in(pool: examples_lib.Examples, x: np.ndarray) -> list[int]:
  """Returns where the images are in the pool, which has each of them once."""
  place = {image.tobytes(): i for i, image in enumerate(pool.x)}
  return [place[image.tobytes()] for image in x]


class TestCovariateShift:
  @pytest.mark.parametrize(
    "corruption_set, number", [("all", NUM_CORRUPTIONS), ("benchmark", 15)]
  )
  def test_every_corruption_comes_before_one_comes_twice(
    self, images, corruption_set, number
  ):
    names, other = (
      make_covariate_streams(
        [0, 1],
        images,
        num_clients=2 * number + 3,
        corruption_set=corruption_set,
        seed=seed,
      ).corruption_names
      for seed in (6, 7)
    )
    first = names[:number]
    assert sorted(first) == sorted(corruptions.names()[:number])
    assert len(set(first)) == number
    assert names[number:] == first + first[:3]
    # The clients of another run have others.
    assert sorted(other[:number]) == sorted(first) and other != names

  @pytest.mark.parametrize(
    "omega, severities, expected",
    [
      # 5 omega = 0, 0.45, 0.5, 1.45, 1.5, 2.5, 3.45, 3.5, 4.5, 5.
      (
        [0, 0.09, 0.1, 0.29, 0.3, 0.5, 0.69, 0.7, 0.9, 1],
        "zero_to_five",
        [0, 0, 1, 1, 2, 3, 3, 4, 5, 5],
      ),
      # Those of the program begin at 1.
      *(
        (
          schedules.omega(name, 100, source="program"),
          "one_to_five",
          [0, *expected],
        )
        for name, expected in (
          ("linear", [1] + [2] * 24 + [3] * 25 + [4] * 25 + [5] * 25),
          ("sine", ([3, 5, 5, 5, 4, 3, 2, 2, 2] * 12)[:100]),
        )
      ),
    ],
  )
  def test_severity_follows_the_weight(
    self, omega, severities, expected, images
  ):
    streams = make_covariate_streams(omega, images, severities=severities)
    assert [streams.severity(t) for t in range(len(omega))] == expected

  def test_each_client_can_have_its_own_weights(self, images):
    omega = np.array([[0, 1, 0], [0, 0, 0.4], [0, 0, 0], [0, 0.2, 0.2]])
    found = make_covariate_streams(omega, images, samples_per_step=4)
    assert found.num_timesteps == 2
    assert [
      [found.severity(t, client) for t in range(3)] for client in range(4)
    ] == [[0, 5, 0], [0, 0, 2], [0, 0, 0], [0, 1, 1]]
    assert_allclose(
      [[found.shift(client, t) for t in (1, 2)] for client in range(4)],
      [[1, 1], [0, 0.4], [0, 0], [0.2, 0]],
    )
    common = make_covariate_streams(omega[1], images, samples_per_step=4)
    for t in 1, 2:
      assert equal(found.batch(1, t), common.batch(1, t))
    labels = make_streams(omega)
    start, target = labels.class_distribution(1, 0), labels.targets[1]
    assert_allclose(labels.class_distribution(1, 2), 0.6 * start + 0.4 * target)

  # Of random numbers, and of none.
  @pytest.mark.parametrize("name", ["gaussian_noise", "saturate"])
  def test_image_is_corrupted_in_one_way_wherever_it_is_drawn(
    self, name, images
  ):
    found = make_covariate_streams(
      [0, 0.2, 1, 1],
      images,
      num_clients=NUM_CORRUPTIONS,
      samples_per_step=20,
    )
    client = found.corruption_names.index(name)
    for timestep, severity in ((1, 1), (2, 5), (3, 5)):
      corrupted = [
        corruptions.corrupt(image[np.newaxis], name, severity, [i])
        for i, image in enumerate(images.x)
      ]
      pool = images._replace(x=np.concatenate(corrupted))
      assert np.all(np.any(pool.x != images.x, axis=(1, 2, 3)))
      batch = found.batch(client, timestep)
      positions = positions_in(pool, batch.x)
      assert len(set(positions)) > 3
      assert_array_equal(batch.y, images.y[positions])

  def test_published_images_are_used_where_there_are_any(self):
    # An image of the archive says which one it is; its order is not the pool's.
    def archive(name, severity):
      number = corruptions.names().index(name)
      x = 1000 * number + 100 * severity + np.arange(100, dtype=np.float32)
      return examples_lib.Examples(x, TOY_Y[::-1].copy())

    found = make_covariate_streams([0, 0.05, 0.4, 1], TOY, archive=archive)
    for client, name in enumerate(found.corruption_names):
      clean = found.batch(client, 1)
      assert_array_equal(clean.y, TOY_Y[clean.x.astype(int)])
      for timestep, severity in ((2, 2), (3, 5)):
        batch = found.batch(client, timestep)
        start = 1000 * corruptions.names().index(name) + 100 * severity
        positions = (batch.x - start).astype(int)
        assert set(positions) <= set(range(100))
        assert_array_equal(batch.y, TOY_Y[::-1][positions])

  def test_classes_stay_uniform(self):
    found = make_covariate_streams(
      [0, 1], TOY, samples_per_step=20_000, archive=lambda name, severity: TOY
    )
    for timestep in range(2):
      assert_array_equal(
        found.class_distribution(1, timestep), np.full(3, 1 / 3)
      )
    assert_frequencies(found.batch(1, 1).y, np.full(3, 1 / 3))


class TestFewClasses:
  """Clients who draw from some classes only, and classes that never occur."""

  @hypothesis.settings(max_examples=25)
  @hypothesis.given(st.data())
  def test_batch_has_the_distribution_of_its_step(self, data):
    # Classes 0 and 4 never occur.
    classes = [1, 2, 3, 5]
    held = data.draw(
      st.lists(
        st.sets(st.sampled_from(classes), min_size=1), min_size=1, max_size=3
      )
    )
    if data.draw(st.booleans()):
      # All examples belong to all clients, who are dealt classes.
      client, options = None, {"client_classes": list(map(list, held))}
      y = np.repeat(classes, 3)
    else:
      client = np.repeat(np.arange(len(held)), [3 * len(own) for own in held])
      options = {"pool_client": client}
      y = np.concatenate([np.repeat(sorted(own), 3) for own in held])
    streams = online_adaptation.Streams(
      examples_lib.Examples(np.arange(len(y)), y.astype(np.int32)),
      6,
      np.array([0, 0.25, 1]),
      num_clients=len(held),
      samples_per_step=2000,
      # So small that Q_T is one class, held or not.
      dirichlet=data.draw(st.sampled_from([1e-3, 0.1, 1.0, np.inf])),
      seed=data.draw(st.integers(0, 1000)),
      **options,
    )
    for number, own in enumerate(held):
      start, mixed, end = (
        streams.class_distribution(number, step) for step in range(3)
      )
      is_held = np.isin(np.arange(6), list(own))
      assert_array_equal(start, is_held / len(own))
      # Eq. 1.
      assert_allclose(mixed, 0.75 * start + 0.25 * end)
      assert_array_equal(end, streams.targets[number])
      assert end.sum() == pytest.approx(1) and not end[~is_held].any()
      assert streams.shift(number, 2) == pytest.approx(
        np.abs(end - mixed).sum()
      )
      for step, distribution in ((1, mixed), (2, end)):
        batch = streams.batch(number, step)
        assert_frequencies(batch.y, distribution)
        assert client is None or np.all(client[batch.x] == number)

  def test_classes_that_never_occur_change_no_target(self):
    pools = (
      examples_lib.Examples(np.arange(20), y)
      for y in (np.arange(20) % 3, np.arange(20) % 3 + 1)
    )
    targets = [
      online_adaptation.Streams(
        pool, 5, np.array([0, 1]), num_clients=5, samples_per_step=3
      ).targets
      for pool in pools
    ]
    assert_array_equal(targets[0][:, :3], targets[1][:, 1:4])
    assert len({tuple(target) for target in targets[0]}) == 5
    assert not targets[1][:, [0, 4]].any()


class TestArchiveOf:
  def test_archive_of_the_data_set_is_read_once(self, monkeypatch, tmp_path):
    asked = []
    x = np.zeros((2, 32, 32, 3), np.uint8)
    y = np.int32([99, 0])

    def load(*arguments, data_dir):
      asked.append((*arguments, data_dir))
      return table.of_classes(x, y, tuple(map(str, range(100))))

    monkeypatch.setattr(
      cifar100, "DATASET", dataclasses.replace(cifar100.DATASET, corrupted=load)
    )
    read = online_adaptation.archive_of("cifar100", tmp_path)
    for _ in range(2):
      examples = read("fog", 3)
    assert asked == [("fog", 3, tmp_path)]
    assert equal(examples, (x, y))
    online_adaptation.archive_of("cifar100")("snow", 1)
    assert asked[1:] == [("snow", 1, None)]
    y[0] = 100
    with pytest.raises(
      ValueError, match=r"^y of cifar100 under snow of severity 2: .* got 100 "
    ):
      read("snow", 2)

  def test_archive_that_is_absent_is_named(self, tmp_path):
    with pytest.raises(
      dataset_lib.DatasetNotFoundError, match="'cifar10_corrupted"
    ):
      online_adaptation.archive_of("cifar10", tmp_path)("fog", 3)


def without_class_2(name, severity):
  return examples_lib.Examples(TOY.x[:25], TOY_Y[:25])


STREAMS = make_streams([0, 1])
OUTSIDE = "does not exist: it must lie in 0.."


POOL_CLIENT = np.repeat([0, 1, 2, 3], 25)


@pytest.mark.parametrize(
  "function, arguments, message",
  [
    (STREAMS.batch, (4, 1), f"client 4 {OUTSIDE}3"),
    (STREAMS.batch, (0, 2), f"timestep 2 {OUTSIDE}1"),
    (STREAMS.class_distribution, (0, -1), f"timestep -1 {OUTSIDE}1"),
    (STREAMS.severity, (-1,), f"timestep -1 {OUTSIDE}1"),
    (STREAMS.shift, (-1, 1), f"client -1 {OUTSIDE}3"),
    *(
      (functools.partial(make_streams, **{"omega": [0, 1]} | options), (), text)
      for options, text in (
        (
          {"shift_kind": "both"},
          "shift_kind must be one of label, covariate, got 'both'",
        ),
        ({"num_clients": 0}, "num_clients must be "),
        ({"samples_per_step": 0}, "samples_per_step must be "),
        (
          {"omega": np.zeros((3, 2))},
          "omega must have a row for each of 4 clients, got 3",
        ),
        (
          {"pool_client": np.zeros(99, int)},
          "pool_client must have a client for each of 100 examples, got the"
          " shape [99]",
        ),
        (
          {
            "pool_client": POOL_CLIENT,
            "client_classes": [[0], [0], [2], [2]],
          },
          "client 1 cannot draw a stream",
        ),
      )
    ),
    (
      make_covariate_streams([0, 1], TOY, archive=without_class_2).batch,
      (2, 1),
      "of severity 5: there is no example of class 2, whose probability is 0.3",
    ),
    (
      online_adaptation.archive_of,
      ("digits",),
      "corrupted images are published for cifar10 and cifar100, not for 'digi",
    ),
    (
      online_adaptation.load_online_adaptation,
      ("emnist",),
      "dataset must be one of "
      + ", ".join(datasets.names("online_adaptation")),
    ),
    (
      lambda name: online_adaptation.load_online_adaptation(
        "digits", pretraining_distribution=name
      ),
      ("normal",),
      "'normal'",
    ),
    (
      lambda number: online_adaptation.load_online_adaptation(
        "digits", max_pretraining_examples=number
      ),
      (0,),
      "max_pretraining_examples must be ",
    ),
  ],
)
def test_bad_arguments_are_refused(function, arguments, message, refusal):
  assert message in refusal(function, *arguments)
