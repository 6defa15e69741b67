"""Tests of data sets of the user: files of arrays, and any set of TFDS."""

import hashlib
import pathlib

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tff_shift.data import dataset as dataset_lib
from tff_shift.data import datasets
from tff_shift.data import sources
from tff_shift.data.images import color_transforms
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.data.shifts import evolving
from tff_shift.data.shifts import guidance
from tff_shift.data.shifts import online_adaptation

N = 60


def make_arrays(**changes):
  arrays = {"x": np.arange(2.0 * N).reshape(N, 2), "y": np.arange(N) % 3}
  return {k: v for k, v in (arrays | changes).items() if v is not None}


@pytest.fixture
def save(tmp_path):
  """Returns `save(**changes)`, which gives the name of a file."""

  def save(**changes):
    path = tmp_path / "tabular.npz"
    np.savez(path, **make_arrays(**changes))
    return str(path)

  return save


@pytest.mark.parametrize(
  "name, error, message",
  [
    ("no.npz", dataset_lib.DatasetNotFoundError, r"^no\.npz: there is no"),
    ("tfds:toy", dataset_lib.DatasetNotFoundError, "fetch it with"),
    *(
      (name, ValueError, "^dataset must be tfds:<name> or")
      for name in ("tfds:", "tfds:../x", "tfds:a:b", "tfds:a/..")
    ),
  ],
)
def test_names_without_a_data_set_are_refused(name, error, message, tmp_path):
  with pytest.raises(error, match=message):
    datasets.get(name, data_dir=tmp_path)


def images(channels):
  return np.random.default_rng(0).integers(0, 256, (N, 8, 8, channels))


class TestFile:
  def test_classes_that_are_named_may_lack_examples(self, save):
    names = np.array([f"class {label}" for label in range(9)])
    entry = datasets.get(save(y=np.arange(N) % 2 + 6, class_names=names))
    assert entry.num_classes == 9

  def test_entry_says_what_the_file_holds(self, save):
    assert datasets.load(save()).schema.features is None
    name = save(num_train=np.array(40), feature_names=np.array(["b", "a"]))
    entry = datasets.get(name)
    assert (entry.shape, entry.dtype) == ((2,), np.float32)
    assert entry.num_classes == 3
    assert set(entry.models.values()) == {"mlp"}
    loaded = datasets.load(name)
    assert_array_equal(loaded.x, make_arrays()["x"])
    assert loaded.y.dtype == np.int32
    assert loaded.schema.classes == ("0", "1", "2")
    assert loaded.num_train == 40
    assert loaded.schema.features == ("b", "a")

  @pytest.mark.parametrize("channels, dynamic", [(1, "mlp"), (3, "cnn")])
  def test_images_have_the_models_of_digits_and_cifar10(
    self, save, channels, dynamic
  ):
    entry = datasets.get(save(x=images(channels)))
    assert entry.dtype == np.uint8
    models = dict(entry.models)
    assert models.pop("evolving") == "cnn"
    assert models.pop("dynamic_personalization") == dynamic
    like = datasets.get("digits" if channels == 1 else "cifar10").models
    assert models == {name: like[name] for name in models}
    assert set(models) == {"online_adaptation", "guidance"}

  def test_file_that_has_changed_is_read_again(self, save):
    first = datasets.get(save()).num_classes
    assert (first, datasets.get(save(y=np.arange(N) % 5)).num_classes) == (3, 5)

  def test_checksum_and_name_are_those_of_the_file(self, save, tmp_path):
    name = save()
    content = (tmp_path / "tabular.npz").read_bytes()
    assert sources.checksum(name) == hashlib.sha256(content).hexdigest()
    assert sources.short_name(name) == "tabular"
    assert sources.checksum("digits") is None
    assert sources.short_name("digits") == "digits"
    assert sources.short_name("tfds:mnist") == "tfds:mnist"

  @pytest.mark.parametrize(
    "changes, message",
    [
      ({"x": None}, "it has no x, uint8 images "),
      ({"y": None}, "it has no y, [n] integers"),
      (
        {"clients": np.zeros(N)},
        "unknown array 'clients'; its arrays may be x,",
      ),
      ({"y": np.zeros(N)}, "y of {}: integers wanted"),
      (
        {"x": images(3) / 255},
        "x of {}: uint8 images [n, height, width, 1 or 3], or floats [n,"
        " features] wanted, got float64 [60, 8, 8, 3]; of pixels from 0 to 1,"
        " np.rint(255 * x)",
      ),
      ({"x": np.array(1.0)}, "x of {}: uint8 images [n, height, width"),
      (
        {"class_names": np.arange(3)},
        "class_names of {}: [classes] texts wanted",
      ),
      (
        {"client": np.array(["a", "b", "a "])[np.arange(N) % 3]},
        "client of {}: 'a' (example 0) and 'a ' (example 2) differ only in bl",
      ),
      (
        {"x": 1.7e9 + np.arange(2.0 * N).reshape(N, 2)},
        "x of {}: float32 cannot tell the values of column 0 apart (60 values,",
      ),
      (
        {"class_names": np.array(["Z\u00fcrich", "Zu\u0308rich", "c"])},
        r"class_names of {}: 'Z\xfcrich' (class 0) and 'Zu\u0308rich' (class 1)"
        " differ only in their Unicode form",
      ),
      (
        {"feature_names": np.array(["age", "age"])},
        "feature_names of {}: 'age' is there twice (feature 0 and feature 1)",
      ),
      (
        {"client": np.array(["a", "\ud83d"])[np.arange(N) % 2]},
        "client of {}: UTF-8 cannot encode half of a surrogate pair, got",
      ),
      ({"num_train": np.array([1, 2])}, "num_train of {}: an integer wanted"),
      ({"domain": np.zeros(N)}, "domain of {}: [n] integers, ordered by"),
      ({"domain": np.zeros(N, int)}, "there must be at least 2 times"),
      (
        {"client": np.zeros((N, 1), int)},
        "client of {}: [n] integers or texts",
      ),
    ],
  )
  def test_invalid_arrays_are_named(self, changes, message, save, refusal):
    name = save(**changes)
    told = refusal(datasets.load, name)
    assert told.startswith((message.format(name), f"{name}: {message}"))

  def test_damaged_file_is_refused_in_one_line(self, save, refusal):
    name = save()
    path = pathlib.Path(name)
    path.write_bytes(path.read_bytes()[:-30])
    assert refusal(datasets.get, name).startswith(f"{name}: it is ")


class TestDomains:
  def test_numbers_are_the_order_and_the_names(self, save):
    name = save(domain=np.array([1990, 1970, 1980] * (N // 3)))
    loaded = evolving.load_evolving(name)
    assert loaded.name == pathlib.Path(name).stem == "tabular"
    assert [each.name for each in loaded.domains] == ["1970", "1980", "1990"]
    assert loaded.domains[0].x[:, 0].tolist() == list(range(2, 2 * N, 6))

  def test_fewer_domains_join_some(self, save):
    name = save(domain=np.array([7, 1, 3, 2] * (N // 4)))
    loaded = evolving.load_evolving(name, num_domains=2)
    assert [each.name for each in loaded.domains] == ["1 to 2", "3 to 7"]
    assert [len(each.y) for each in loaded.domains] == [30, 30]

  def test_images_without_domains_are_turned(self, save, refusal):
    name = save(x=images(1))
    turned = evolving.load_evolving(name, angle_step=90, num_domains=2)
    assert [domain.name for domain in turned.domains] == ["0 deg", "90 deg"]
    assert len(evolving.load_evolving(name, angle_step=5).domains) == 8
    told = refusal(evolving.load_evolving, name)
    assert "has no domains: give angle_step" in told

  def test_vectors_without_domains_are_time_steps(self, save, refusal):
    name = save()
    loaded = evolving.load_evolving(name, angle_step=0, num_domains=3)
    assert [len(domain.y) for domain in loaded.domains] == [20] * 3
    names = [domain.name for domain in loaded.domains]
    assert names == ["step 1", "step 2", "step 3"]
    told = refusal(evolving.load_evolving, name, angle_step=15)
    assert "angle_step=0 makes domains of equal distribution" in told


class TestClients:
  """Who holds an example keeps it, in every scenario."""

  CLIENT = np.array(["b", "a", "c"])[np.arange(N) // 3 % 3]
  # By the names' order, a, b, c.
  OWNER = np.array([1, 0, 2])[np.arange(N) // 3 % 3]

  # 20 clients of two examples, and 20 of one, who are asked nothing.
  SINGLES = np.repeat(np.arange(40), [2, 1] * 20)

  def owners(self, x):
    return self.OWNER[x[:, 0].astype(int) // 2].tolist()

  def test_clients_may_lack_domains_and_the_target(self, save, refusal):
    # a has 1970 and 1980, b all, c came in 1990, the target.
    year = np.array([1970, 1980, 1990])[np.arange(N) % 3]
    year = np.where((self.OWNER == 0) & (year == 1990), 1970, year)
    year = np.where(self.OWNER == 2, 1990, year)
    loaded = evolving.load_evolving(save(client=self.CLIENT, domain=year))
    clients = evolving.assemble_clients(loaded, num_clients=3)
    held = [
      (each.train.domain_sizes + each.test.domain_sizes).tolist()
      for each in clients
    ]
    expected = [
      [np.sum((i == self.OWNER) & (year == y)) for y in (1970, 1980, 1990)]
      for i in range(3)
    ]
    assert held == expected
    assert expected[0][2] == expected[2][0] == expected[2][1] == 0
    assert [client.name for client in clients] == ["a", "b", "c"]
    for client in clients:
      for side in (client.train, client.test):
        assert set(self.owners(side.x)) <= {client.client_id}
      assert client.train.domain_sizes[-1] == 0
    for number in (2, 4):
      assert refusal(
        evolving.assemble_clients, loaded, num_clients=number
      ).startswith("num_clients must be 3, the num")

  def test_streams_stay_with_their_clients(self, save):
    dataset = online_adaptation.load_online_adaptation(save(client=self.CLIENT))
    assert self.owners(dataset.stream.x) == dataset.stream_client.tolist()
    assert self.owners(dataset.initial.x) == dataset.initial_client.tolist()
    assert np.bincount(dataset.initial_client).tolist() == [3, 3, 3]

  def test_periods_stay_with_their_clients(self, save):
    dataset = dynamic_personalization.load_dynamic_personalization(
      save(client=self.CLIENT), seed=0
    )
    assert sum(map(len, dataset.clients.values())) == N
    for part, clients in dataset.clients.items():
      assert self.owners(getattr(dataset, part).x) == clients.tolist()
    for rest in dynamic_personalization.RESTS:
      periods = dynamic_personalization.Periods(
        dataset.train,
        3,
        "0.5",
        num_clients=3,
        period_size=8,
        seed=0,
        rest=rest,
        pool_client=dataset.clients["train"],
      )
      for client in range(3):
        assert set(self.owners(periods.batch(client, 0).x)) == {client}

  def test_own_images_and_vectors_stay_as_they_are(self, save):
    for x in (images(3), images(1), make_arrays()["x"]):
      name = save(client=self.CLIENT, x=x)
      held = guidance.load_guidance(name, num_clients=3, partition=None, seed=0)
      x = x.astype(np.float32 if x.ndim == 2 else np.uint8)
      for client in range(3):
        rows = [
          (row.tobytes(), label)
          for part in held[:2]
          for row, label in zip(part[client].x, part[client].y, strict=True)
        ]
        expected = np.flatnonzero(client == self.OWNER)
        assert sorted(rows) == sorted(
          (x[i].tobytes(), make_arrays()["y"][i]) for i in expected
        )
      assert held.sample.tobytes() == x[0].tobytes()
      assert held.schema.clients == ("a", "b", "c")
      assert set(held.transforms) == {color_transforms.ColorTransform()}

  def test_own_images_are_moved_if_that_is_asked_for(self, save):
    held = guidance.load_guidance(
      save(x=images(1)),
      num_clients=2,
      partition="dirichlet_inf",
      intensity="low",
      seed=0,
    )
    assert held.transforms == color_transforms.pool(2, "low")
    assert held.sample.shape == (8, 8, 3)

  def test_any_number_of_clients_is_guided(self, save):
    name = save(client=self.SINGLES)
    held = guidance.load_guidance(name, num_clients=40, partition=None, seed=0)
    sizes = [[len(examples.y) for examples in part] for part in held[:2]]
    assert sizes == [[1] * 40, [1, 0] * 20]

  @pytest.mark.parametrize(
    "changes, options, message",
    [
      (
        {"domain": np.arange(N) // 20},
        {},
        "{}: guidance would ignore its domains (--time, domain of",
      ),
      ({"client": CLIENT}, {}, "partition '2_spc' does not go with {}: it"),
      (
        {},
        {"intensity": "low"},
        "intensity 'low' changes the colours of images, and {} has vectors of 2"
        " numbers",
      ),
      (
        {"client": np.arange(N)},
        {"num_clients": N, "partition": None},
        "{}: no client has both a training and",
      ),
      (
        {"client": SINGLES},
        {"num_clients": 39, "partition": None},
        "num_clients must be 40, the num",
      ),
      (
        {"num_train": 40},
        {"test_fraction": 0.2},
        "test_fraction does not apply to {}, whose test",
      ),
    ],
  )
  def test_options_of_guidance_must_fit(
    self, save, changes, options, message, refusal
  ):
    name = save(**changes)
    options = {"num_clients": 2, "partition": "2_spc", "seed": 0} | options
    told = refusal(guidance.load_guidance, name, **options)
    assert told.startswith(message.format(name))

  def test_clients_with_too_little_are_named(self, save, refusal):
    name = save(client=np.where(np.arange(N) < 2, 1, 0))
    told = refusal(online_adaptation.load_online_adaptation, name)
    assert told.startswith("client '1' of ") and "has 2 examples, too" in told
    told = refusal(
      dynamic_personalization.load_dynamic_personalization, name, seed=0
    )
    assert "would be empty for client 1; " in told


class TestOfficialSplit:
  """Who says what is for testing trains on nothing of it."""

  NUM_TRAIN = 40
  # In the order of the file each client has each year in both parts.
  CLIENT = np.array(["a", "b"])[np.arange(N) % 2]
  YEAR = 1990 + np.arange(N) // 2 % 3

  def places(self, parts):
    """The places of examples in the file, sorted."""
    return sorted(int(x) // 2 for each in parts for x in each.x[:, 0])

  def file(self, save, **changes):
    return save(num_train=np.array(self.NUM_TRAIN), domain=self.YEAR, **changes)

  @pytest.mark.parametrize("client", [None, CLIENT])
  def test_evolving_trains_and_tests_on_the_two_parts(self, save, client):
    loaded = evolving.load_evolving(self.file(save, client=client))
    clients = evolving.assemble_clients(loaded, num_clients=2)
    is_target = self.YEAR == 1992
    in_training = np.arange(N) < self.NUM_TRAIN
    assert (
      self.places(each.train for each in clients)
      == np.flatnonzero(in_training & ~is_target).tolist()
    )
    # The target as well is judged by what is for testing.
    assert (
      self.places(each.test for each in clients)
      == np.flatnonzero(~in_training).tolist()
    )
    for each in clients:
      sizes = each.train.domain_sizes, each.test.domain_sizes
      assert (sizes[0][:-1] > 0).all() and (sizes[1] > 0).all()
      if client is not None:
        names = client[self.places([each.train, each.test])]
        assert set(names) == {each.name}

  def test_selection_by_the_last_source_sees_no_test_example(self, save):
    loaded = evolving.load_evolving(self.file(save, client=self.CLIENT))
    clients = evolving.assemble_clients(
      evolving.without_target(loaded), num_clients=2
    )
    places = np.arange(self.NUM_TRAIN)
    years = self.YEAR[: self.NUM_TRAIN]
    assert self.places(each.train for each in clients) == (
      places[years == 1990].tolist()
    )
    predicted = [
      each.test._replace(x=each.test.x[each.test.domain_sizes[0] :])
      for each in clients
    ]
    assert self.places(predicted) == places[years == 1991].tolist()

  def test_all_that_comes_before_the_target_may_be_for_training(self, save):
    name = save(domain=np.arange(N) // 20, num_train=np.array(40))
    for each in evolving.assemble_clients(
      evolving.load_evolving(name), num_clients=2
    ):
      assert each.train.domain_sizes.tolist() == [10, 10, 0]
      assert each.test.domain_sizes.tolist() == [0, 0, 10]

  def test_client_of_one_part_is_guided_all_the_same(self, save):
    client = np.where(np.arange(N) < 10, "early", "other")
    client[-5:] = "late"
    name = save(num_train=np.array(self.NUM_TRAIN), client=client)
    held = guidance.load_guidance(name, num_clients=3, partition=None, seed=0)
    assert held.schema.clients == ("early", "late", "other")
    sizes = [[len(each.y) for each in part] for part in held[:2]]
    assert sizes == [[10, 0, 30], [0, 5, 15]]
    validated = guidance.held_out_validation(held, 0)
    sizes = [[len(each.y) for each in part] for part in validated[:2]]
    assert sizes == [[8, 0, 24], [2, 0, 6]]

  def test_tests_of_the_packages_data_sets_are_one_pool(self, monkeypatch):
    digits = datasets.load("digits")
    monkeypatch.setattr(
      datasets, "load", lambda *_, **__: digits._replace(num_train=1000)
    )
    loaded = evolving.load_evolving("rotated_digits")
    assert not loaded.has_own_split
    options = {"num_clients": 2, "partition": "2_spc", "seed": 0}
    held = guidance.load_guidance("digits", **options)
    assert sum(len(each.y) for each in held.test) == round(0.3 * 1797)

  @pytest.mark.parametrize(
    "changes, options, message",
    [
      ({"domain": YEAR}, {"test_fraction": 0.2}, "test_fraction does not appl"),
      (
        {"domain": np.arange(N) // 20, "num_train": 21},
        {},
        "client 1 would have no training example in domain '1'",
      ),
      (
        {"domain": np.arange(N) // 20, "num_train": 20, "client": CLIENT},
        {},
        "domain '1' of tabular, a source, has no training example",
      ),
      (
        {"domain": np.arange(N)[::-1] // 20, "num_train": 59, "client": CLIENT},
        {},
        "domain '2' of tabular, the target, has no test example",
      ),
    ],
  )
  def test_invalid_splits_are_refused(
    self, save, changes, options, message, refusal
  ):
    name = save(**{"num_train": self.NUM_TRAIN} | changes)
    told = refusal(
      evolving.assemble_clients,
      evolving.load_evolving(name),
      num_clients=2,
      **options,
    )
    assert told.startswith(message)


class TestTfds:
  @pytest.fixture(scope="class")
  def written(self, tmp_path_factory, write_tfds):
    """Writes examples of features of many kinds."""
    import tensorflow_datasets as tfds

    of = tfds.features
    vector, images = np.ones(2, np.float32), np.full((2, 4, 4, 3), 9, np.uint8)
    kinds = {
      "image": (of.Image(shape=(4, 4, 3)), images[0]),
      "label": (of.ClassLabel(names=["a", "b", "c"]), 2),
      "coarse": (of.Scalar(np.int64), 1),
      # As an int32 it would be 1.
      "user": (of.Scalar(np.int64), 2**32 + 1),
      "vector": (of.Tensor(shape=(2,), dtype=np.float32), vector),
      "number": (of.Scalar(np.float32), 0.5),
      "flag": (of.Scalar(np.bool_), True),
      "text": (of.Text(), "a"),
      "ragged": (of.Tensor(shape=(None,), dtype=np.float32), vector),
      "film": (of.Video(shape=(2, 4, 4, 3)), images),
      "inner": (of.FeaturesDict({"a": np.float32}), {"a": 1}),
      "photograph": (of.Image(shape=(None, None, 3)), images[0]),
      "box": (of.BBoxFeature(), of.BBox(0.0, 0.0, 1.0, 1.0)),
    }
    features, row = (
      {name: pair[i] for name, pair in kinds.items()} for i in (0, 1)
    )
    other = row | {"image": images[0] - 2, "label": 0}
    folder = tmp_path_factory.mktemp("tfds")
    splits = {"train": [row, other], "validation": [other]}
    write_tfds(folder, "toy", "1.0.0", features, splits)
    return folder

  def test_features_are_the_supervised_keys_or_named(self, written):
    loaded = datasets.load("tfds:toy", data_dir=written)
    assert loaded.x[:, 0, 0, 0].tolist() == [9, 7, 7]
    assert loaded.y.tolist() == [2, 0, 0]
    assert loaded.schema.classes == ("a", "b", "c")
    assert loaded.num_train == 2
    loaded = datasets.load("tfds:toy:vector,coarse", data_dir=written)
    assert_array_equal(loaded.x, np.ones((3, 2), np.float32))
    assert loaded.y.tolist() == [1, 1, 1]
    assert loaded.schema.classes == ("0", "1")

  def test_other_features_are_refused(self, written, refusal):
    fixed = ["image", "vector", "number", "flag", "box"]
    others = ["text", "ragged", "film", "inner", "photograph"]
    for x, y, message in (
      ("image", "labels", "tfds:toy has no feature 'labels'; name two of"),
      ("image", "user", "y of tfds:toy:image,user: the greatest label is"),
      *(("image", y, f"{y} of tfds:toy: a class ") for y in fixed + others),
      *((x, "label", f"{x} of tfds:toy: ") for x in others),
    ):
      told = refusal(datasets.get, f"tfds:toy:{x},{y}", data_dir=written)
      assert told.startswith(message)
      assert "fetch" not in told

  @pytest.mark.parametrize(
    "supervised, told",
    [
      (({"age": "age", "fare": "fare"}, "label"), "a dictionary of 2 features"),
      (("age", "label", "fare"), "(age, label, fare)"),
    ],
  )
  def test_keys_that_are_more_than_two_features_are_refused(
    self, supervised, told, tmp_path, write_tfds, refusal
  ):
    row = {"age": 1, "fare": 2, "label": 1}
    write_tfds(
      tmp_path,
      "toy_table",
      "1.0.0",
      dict.fromkeys(row, np.int64),
      {"train": [row]},
      supervised_keys=supervised,
    )
    message = refusal(datasets.get, "tfds:toy_table", data_dir=tmp_path)
    assert message.startswith("tfds:toy_table does not have two")
    assert told in message and "tfds:toy_table:<x>,<y>" in message

  def test_set_without_examples_or_dictionaries_is_refused(
    self, tmp_path, write_tfds, refusal
  ):
    import tensorflow_datasets as tfds

    features = {"image": np.float32, "label": np.int64}
    write_tfds(
      tmp_path,
      "toy_episodes",
      "1.0.0",
      tfds.features.Sequence(features),
      {"train": [[{"image": 0.5, "label": 1}]]},
      supervised_keys=None,
    )
    told = refusal(datasets.get, "tfds:toy_episodes", data_dir=tmp_path)
    assert "be dictionaries " in told and "got Sequence" in told
    write_tfds(tmp_path, "toy_empty", "1.0.0", features, {})
    told = refusal(datasets.get, "tfds:toy_empty", data_dir=tmp_path)
    assert told == "tfds:toy_empty holds no example"
