"""Tests of data sets of Hugging Face; most need the extra `huggingface`."""

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
STYLE = np.array(["photo", "art", "sketch"])[np.arange(N) // 2 % 3]
COLUMNS = {"label": "label", "client": "site"}


def make(**columns):
  import datasets as library

  return library.Dataset.from_dict(
    {
      "image": list(map(Image.fromarray, PIXELS)),
      "label": LABEL,
      "site": SITE,
      "style": STYLE,
      "vector": [[n, n + 0.5] for n in range(N)],
      "age": np.arange(N) + 20,
    }
    | columns,
    library.Features(
      image=library.Image(),
      label=library.ClassLabel(names=["no", "yes", "never"]),
      site=library.Value("string"),
      style=library.Value("string"),
      vector=library.List(library.Value("float32")),
      age=library.Value("int32"),
    ),
  )


@needs_library
def test_images_are_the_arrays_bit_for_bit():
  named = ts.from_huggingface("guidance", make(), image="image", **COLUMNS)
  expected = from_arrays.guidance(
    [(PIXELS[site == SITE], LABEL[site == SITE]) for site in "ab"],
    num_classes=3,
  )
  for part, other in zip(named.data, expected, strict=True):
    for one, arrays in zip(part, other, strict=True):
      assert one.x.tobytes() == arrays.x.tobytes()
      assert one.y.tobytes() == arrays.y.tobytes()
  assert named.class_names == ("no", "yes", "never")
  assert named.client_names == ("a", "b")


@needs_library
def test_vectors_and_numbers_are_features():
  named = ts.from_huggingface(
    "evolving",
    make().with_format("numpy"),
    features=["age", "vector"],
    time="style",
    domain_order=["photo", "sketch", "art"],
    **COLUMNS,
  )
  assert named.time_names == ("photo", "sketch", "art")
  # Client a has rows 6 to 11; rows 8 and 9 are art.
  target = named.data[0].test.x[-2:]
  assert target.tolist() == [[28, 8, 8.5], [29, 9, 9.5]]


@needs_library
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
def test_wrong_columns_are_named(columns, options, message, refusal):
  scenario = "evolving" if "time" in options else "guidance"
  options = {"image": "image"} | COLUMNS | options
  told = refusal(ts.from_huggingface, scenario, make(**columns), **options)
  assert told.startswith(message)


@needs_library
def test_saved_folder_is_the_object(tmp_path, refusal):
  path = tmp_path / "saved"
  name = f"{path}?label=label&image=image&client=site"
  make().save_to_disk(path)
  loaded = datasets.load(name)
  assert loaded.x.tobytes() == PIXELS.tobytes()
  assert loaded.y.tolist() == LABEL.tolist()
  assert loaded.class_names == ("no", "yes", "never")
  assert loaded.client_names == ("a", "b")
  first = own_datasets.checksum(name)
  make().save_to_disk(path)
  assert own_datasets.checksum(name) == first
  make(label=1 - LABEL).save_to_disk(path)
  assert own_datasets.checksum(name) != first
  told = refusal(datasets.get, str(path))
  assert told.endswith("--label must name the column of the class")


@needs_library
def test_splits_are_refused(tmp_path, refusal):
  import datasets as library

  both = library.DatasetDict(train=make(), test=make())
  told = refusal(ts.from_huggingface, "guidance", both, **COLUMNS)
  assert told.endswith("got DatasetDict; choose a split: train, test")
  both.save_to_disk(tmp_path / "both")
  told = refusal(datasets.get, f"{tmp_path / 'both'}?label=label")
  assert told.endswith("has splits; name the folder of one: train, test")


def test_missing_library_names_the_extra(monkeypatch, refusal):
  monkeypatch.setitem(sys.modules, "datasets", None)
  told = refusal(ts.from_huggingface, "guidance", [], **COLUMNS)
  assert told.startswith("the package datasets is missing; install the extra")
  assert 'pip install "tff_shift[huggingface]"' in told
