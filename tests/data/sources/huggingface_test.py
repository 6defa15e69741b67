"""Tests of data sets of Hugging Face; most need the extra `huggingface`."""

import sys

import numpy as np
import pytest
from PIL import Image

import tff_shift as ts
from tff_shift.data import datasets
from tff_shift.data import from_python
from tff_shift.data import sources

N = 12
PIXELS = np.random.default_rng(0).integers(0, 256, (N, 4, 4, 3), np.uint8)
LABEL = np.arange(N) % 2
SITE = np.array(["b", "a"])[np.arange(N) // 6]
STYLE = np.array(["photo", "art", "sketch"])[np.arange(N) // 2 % 3]
VECTOR = {"image": None, "features": ["vector"]}
COLUMNS = {"label": "label", "client": "site"}


def make(**columns):
  library = pytest.importorskip(
    "datasets", reason="the extra huggingface is not installed"
  )
  text, number = library.Value("string"), library.Value("float32")
  classes = library.ClassLabel(names=["no", "yes", "never"])
  features = {
    **{"image": library.Image(), "label": classes, "site": text},
    **{"style": text, "age": number, "vector": library.List(number)},
  }
  values = {
    **{"image": list(map(Image.fromarray, PIXELS)), "label": LABEL},
    **{"site": SITE, "style": STYLE, "age": np.arange(N) + 20},
    "vector": [[n, n + 0.5] for n in range(N)],
  }
  return library.Dataset.from_dict(values | columns, library.Features(features))


def test_images_are_the_arrays_bit_for_bit():
  named = ts.from_huggingface("guidance", make(), image="image", **COLUMNS)
  arrays = [(PIXELS[site == SITE], LABEL[site == SITE]) for site in "ab"]
  expected = from_python.from_arrays("guidance", arrays, num_classes=3)
  for one, two in zip(sum(named.data, ()), sum(expected, ()), strict=True):
    assert one.x.tobytes() == two.x.tobytes()
    assert one.y.tobytes() == two.y.tobytes()
  assert named.schema.classes == ("no", "yes", "never")
  assert named.schema.clients == ("a", "b")


def test_vectors_and_numbers_are_features():
  options = {"features": ["age", "vector"], "time": "style"} | COLUMNS
  options["domain_order"] = ["photo", "sketch", "art"]
  named = ts.from_huggingface("evolving", make(), **options)
  assert named.schema.times == ("photo", "sketch", "art")
  # Client a has rows 6 to 11; rows 8 and 9 are art.
  target = named.data[0].test.x[-2:]
  assert target.tolist() == [[28, 8, 8.5], [29, 9, 9.5]]


@pytest.mark.parametrize(
  "columns, options, message",
  [
    ({}, {"image": "age"}, "image='age' has the type Value, not Image; use"),
    ({}, {"time": "style", "image": "image"}, "time 'style': texts have no"),
    ({"label": [-1] * N}, {}, "label 'label' has missing values"),
    ({"image": [None] * N}, {}, "image 'image' of row 0 is missing"),
    ({"image": ["no.png"] * N}, {}, "image 'image' of row 0: no.png cannot be"),
    ({"vector": [[]] + [[1]] * 11}, VECTOR, "features: column 'vector' must "),
    (
      {},
      VECTOR | {"missing": "zero"},
      "missing must be one of error, mean, median,",
    ),
  ],
)
def test_wrong_columns_are_named(columns, options, message, refusal):
  scenario = "evolving" if "time" in options else "guidance"
  options = {"image": "image"} | COLUMNS | options
  told = refusal(ts.from_huggingface, scenario, make(**columns), **options)
  assert told.startswith(message)


def test_saved_folder_is_the_object(tmp_path):
  path = tmp_path / "saved"
  name = f"{path}?label=label&image=image&client=site"
  make().save_to_disk(path)
  loaded = datasets.load(name)
  assert loaded.x.tobytes() == PIXELS.tobytes()
  assert loaded.y.tolist() == LABEL.tolist()
  first = sources.checksum(name)
  make().save_to_disk(path)
  assert sources.checksum(name) == first
  make(label=1 - LABEL).save_to_disk(path)
  assert sources.checksum(name) != first


def test_splits_are_refused(tmp_path, refusal):
  both = make().train_test_split()
  told = refusal(ts.from_huggingface, "guidance", both, **COLUMNS)
  assert told.endswith("got DatasetDict; choose a split: train, test")
  both.save_to_disk(tmp_path / "both")
  told = refusal(datasets.get, f"{tmp_path / 'both'}?label=label")
  assert told.endswith("has splits; name the folder of one: train, test")


def test_missing_library_names_the_extra(monkeypatch, refusal):
  monkeypatch.setitem(sys.modules, "datasets", None)
  told = refusal(ts.from_huggingface, "guidance", [], **COLUMNS)
  assert 'pip install "tff_shift[huggingface]"' in told
