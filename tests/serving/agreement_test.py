"""`model.json` of another model than that beside it."""

import os
import shutil

import numpy as np
import pytest

import tff_shift
from tff_shift import records
from tff_shift.serving import description


@pytest.fixture
def folder(served_federation, tmp_path):
  return shutil.copytree(served_federation, tmp_path / "model")


def refusal(folder):
  with pytest.raises(ValueError) as caught:
    tff_shift.load(folder)
  assert "\n" not in str(caught.value)
  assert str(caught.value).endswith("; export the model once more")
  return str(caught.value)


@pytest.mark.parametrize(
  ("field", "value", "found"),
  [
    ("clients", (0, 1, 5), "0, 1, 5, but the SavedModel has 0, 1, 2"),
    ("clients", (0, 1), "0, 1, but the SavedModel has 0, 1, 2"),
    ("input_shape", (3,), "3, but the SavedModel has 2"),
    ("input_shape", (2, 1), "2, 1, but the SavedModel has 2"),
    ("input_dtype", "uint8", "uint8, but the SavedModel has float32"),
    ("num_classes", 4, "4, but the SavedModel has 3"),
    ("request_shape", (4,), "4, but the SavedModel has 3"),
    ("functions", ("predict",), "predict, but the SavedModel has"),
  ],
)
def test_field_that_is_not_of_the_saved_model(folder, field, value, found):
  described = description.read(folder)
  changed = described.replace(class_names=None, **{field: value})
  description.write(folder, changed)
  assert f"model.json: {field} is {found}" in refusal(folder)


def test_clients_are_those_that_have_weights(folder):
  np.savez(folder / "weights.npz", **{f"clients/{n}/head": [0] for n in (0, 9)})
  assert "clients is 0, 1, 2, but weights.npz has 0, 9" in refusal(folder)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"class_names": ["a"]}, "class_names has 1 names, and num_classes is 3"),
    ({"clients": []}, "and clients has none"),
    ({"clients": [1, 1, 2]}, "clients has one of them twice"),
    ({"request_shape": None}, "predict_for, and request_shape is null"),
  ],
)
def test_fields_that_do_not_agree(folder, fields, message):
  whole = description.read(folder).to_fields()
  with pytest.raises(ValueError, match=message):
    records.convert({"format": 2} | whole | fields, description.Description)


@pytest.mark.parametrize(
  "name", ["saved_model.pb", "variables/variables.index", "weights.npz"]
)
def test_pipe_in_the_place_of_a_file(folder, name):
  (folder / name).unlink(missing_ok=True)
  os.mkfifo(folder / name)
  with pytest.raises(ValueError, match=f"{name} is a named pipe"):
    tff_shift.load(folder)


def test_weights_that_are_cut(folder):
  (folder / "weights.npz").write_bytes(b"PK\3\4")
  assert "weights.npz is damaged" in refusal(folder)
