"""Tests of data sets of Hugging Face; they need the extra `huggingface`."""

import importlib.util
import sys

import numpy as np
import pytest
from PIL import Image

import tff_shift as ts
from tff_shift.data import datasets
from tff_shift.data.your_own import from_arrays
from tff_shift.data.your_own import own_datasets

needs_library = pytest.mark.skipif(
  importlib.util.find_spec("datasets") is None,
  reason="the package datasets (extra huggingface) is not installed",
)

N = 12
PIXELS = np.random.default_rng(0).integers(0, 256, (N, 4, 4, 3), np.uint8)
LABEL = np.arange(N) % 2
SITE = np.array(["b", "a"])[np.arange(N) // 6]
YEAR = np.arange(N) // 2 % 3
COLUMNS = {"label": "label", "client": "site"}


def make(**columns):
  import datasets as library

  classes = library.ClassLabel(names=["no", "yes", "never"])
  features = {
    "image": library.Image(),
    "label": classes,
    "site": library.Value("string"),
    "year": library.Value("int64"),
    "style": library.Value("string"),
    "vector": library.List(library.Value("float32")),
    "age": library.Value("int32"),
  }
  values = {
    "image": list(map(Image.fromarray, PIXELS)),
    "label": LABEL,
    "site": SITE,
    "year": YEAR,
    "style": np.array(["photo", "art", "sketch"])[YEAR],
    "vector": [[n, n + 0.5] for n in range(N)],
    "age": np.arange(N) + 20,
  }
  return library.Dataset.from_dict(
    values | columns, features=library.Features(features)
  )


def chosen(client):
  return np.array(["a", "b"])[client] == SITE


@needs_library
class TestRead:
  def test_images_are_the_arrays_bit_for_bit(self):
    named = ts.from_huggingface("guidance", make(), image="image", **COLUMNS)
    expected = from_arrays.guidance(
      [(PIXELS[chosen(m)], LABEL[chosen(m)]) for m in (0, 1)], num_classes=3
    )
    for part, other in zip(named.data, expected, strict=True):
      for one, arrays in zip(part, other, strict=True):
        assert one.x.tobytes() == arrays.x.tobytes()
        assert one.y.tobytes() == arrays.y.tobytes()
    assert named.class_names == ("no", "yes", "never")
    assert named.client_names == ("a", "b")

  def test_vectors_and_numbers_are_features(self):
    named = ts.from_huggingface(
      "evolving",
      make().with_format("numpy"),
      features=["age", "vector"],
      time="style",
      domain_order=["photo", "sketch", "art"],
      **COLUMNS,
    )
    assert named.time_names == ("photo", "sketch", "art")
    target = named.data[0].test.x[-2:]
    # Client a has rows 6 to 11; rows 8 and 9 are art.
    assert target.tolist() == [[28, 8, 8.5], [29, 9, 9.5]]

  @pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
      ({}, {"label": "labl"}, "label='labl' is not a column; there are image,"),
      ({}, {"image": "age"}, "image='age' has the type Value, not Image; use"),
      ({}, {"image": None}, "features: column 'image' has values of type obj"),
      ({}, {"time": "style", "image": "image"}, "time 'style': texts have no"),
      ({"label": [-1] * N}, {}, "label 'label' has missing values"),
      ({"image": [None] * N}, {}, "image 'image' of row 0 is missing"),
      (
        {"image": [{"bytes": None, "path": "no.png"}] * N},
        {},
        "image 'image' of row 0: no.png cannot be read (No such file",
      ),
      (
        {"vector": [[1.0]] * (N - 1) + [[]]},
        {"image": None, "features": ["vector"]},
        "features: column 'vector' must have vectors of one length, got",
      ),
    ],
  )
  def test_wrong_columns_are_named(self, columns, options, message, refusal):
    scenario = "evolving" if "time" in options else "guidance"
    options = {"image": "image"} | COLUMNS | options
    told = refusal(ts.from_huggingface, scenario, make(**columns), **options)
    assert told.startswith(message)

  def test_splits_and_other_types_are_refused(self, refusal):
    import datasets as library

    for wrong, told in [
      (
        library.DatasetDict(train=make()),
        "got DatasetDict; choose a split: tr",
      ),
      (make().to_iterable_dataset(), "got IterableDataset"),
    ]:
      message = refusal(ts.from_huggingface, "guidance", wrong, **COLUMNS)
      assert message.startswith(f"a datasets.Dataset is wanted, {told}")


@needs_library
class TestFolder:
  @pytest.fixture
  def save(self, tmp_path):
    def save(dataset, **options):
      dataset.save_to_disk(tmp_path / "saved")
      return own_datasets.table_name(str(tmp_path / "saved"), options)

    return save

  def test_folder_is_the_object(self, save):
    name = save(make(), label="label", image="image", client="site")
    loaded = datasets.load(name)
    assert loaded.x.tobytes() == PIXELS.tobytes()
    assert loaded.y.tolist() == LABEL.tolist()
    assert loaded.class_names == ("no", "yes", "never")
    assert loaded.client_names == ("a", "b")
    first = own_datasets.checksum(name)
    save(make())
    assert own_datasets.checksum(name) == first
    save(make(label=1 - LABEL))
    assert own_datasets.checksum(name) != first

  def test_splits_and_missing_labels_are_refused(self, save, refusal):
    import datasets as library

    both = library.DatasetDict(train=make(), test=make())
    told = refusal(datasets.get, save(both, label="label"))
    assert told.endswith("has splits; name the folder of one: train, test")
    told = refusal(datasets.get, f"{save(both).removesuffix('?')}/train")
    assert told.endswith("--label must name the column of the class")


def test_missing_library_names_the_extra(monkeypatch, refusal):
  monkeypatch.setitem(sys.modules, "datasets", None)
  told = refusal(ts.from_huggingface, "guidance", [], **COLUMNS)
  assert told.startswith("the package datasets is missing; install the extra")
  assert 'pip install "tff_shift[huggingface]"' in told
