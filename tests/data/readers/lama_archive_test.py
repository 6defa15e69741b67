"""Tests of LAMA on a small archive of the same layout."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tff_shift.data import dataset
from tff_shift.data import datasets
from tff_shift.data.readers import lama_archive
from tff_shift.data.texts import tokens

_NUM_FACTS = 103


def fact(relation, number):
  return {
    "uuid": f"{relation}-{number}",
    "predicate_id": f"P{relation}",
    "sub_label": f"s{relation}x{number}",
    "obj_label": f"o{relation}",
    "evidences": [{"masked_sentence": "s is in [MASK]."}],
  }


@pytest.fixture
def data_dir(tmp_path):
  """41 relations, of which the last has 7 facts; one more without a file."""
  folder = tmp_path / "lama" / "TREx"
  folder.mkdir(parents=True)
  relations = [
    {"relation": f"P{each}", "label": f"r{each}", "template": "[X] in [Y] ."}
    for each in range(42)
  ]
  (tmp_path / "lama" / "relations.jsonl").write_text(
    "".join(json.dumps(each) + "\n" for each in reversed(relations))
  )
  for relation in range(41):
    size = 7 if relation == 0 else _NUM_FACTS
    # A line separator of Unicode is no end of a line.
    facts = [fact(relation, each) | {"extra": "\u2028"} for each in range(size)]
    (folder / f"P{relation}.jsonl").write_text(
      "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in facts),
      encoding="utf-8",
    )
  return tmp_path


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp("model")
  words = [
    ",",
    *(f"o{each}" for each in range(41)),
    *(f"s{r}x{number}" for r in range(41) for number in range(_NUM_FACTS)),
  ]
  size = tokens.write_word_tokenizer(folder / "tokenizer.json", words)
  (folder / "config.json").write_text(json.dumps({"vocab_size": size}))
  return folder


def test_facts_are_subject_and_object_of_100_a_relation(data_dir, model_dir):
  loaded = datasets.load("lama", data_dir=data_dir, model_dir=model_dir)
  # In the order of relations.jsonl, which is backwards here.
  assert loaded.schema.classes == tuple(
    f"r{number}" for number in range(40, -1, -1)
  )
  assert np.bincount(loaded.y).tolist() == [100] * 40 + [7]
  assert loaded.x.shape == (4007, 32)
  # begin, subject, comma, object.
  assert (loaded.x[:, 4:] == tokens.PADDING).all()
  assert (loaded.x[:, [0, 2]] == [1, 2]).all()
  relation = 40 - loaded.y
  assert_array_equal(loaded.x[:, 3], 3 + relation)
  subject = loaded.x[:, 1] - 44
  assert_array_equal(subject // _NUM_FACTS, relation)
  # Different facts, and of each relation others.
  assert len(set(subject)) == len(subject)
  drawn = [set(subject[loaded.y == each] % _NUM_FACTS) for each in range(40)]
  assert len(set(map(frozenset, drawn))) > 30


def test_errors_name_file_and_line(data_dir, model_dir, refusal):
  def refuse(model_dir=model_dir):
    return refusal(
      datasets.load, "lama", data_dir=data_dir, model_dir=model_dir
    )

  archive = data_dir / "lama"
  assert "model_dir must be the folder" in refuse(None)
  one = archive / "TREx" / "P3.jsonl"
  one.write_text('{"sub_label": "a", "obj_label": "b"}\n{"sub_label": "a"}\n')
  assert f"{one}, line 2: " in refuse()
  one.write_text("\n")
  assert f"{one} holds no fact" in refuse()
  one.unlink()
  assert "lists 40 relations" in refuse()
  (archive / "relations.jsonl").unlink()
  with pytest.raises(dataset.DatasetNotFoundError) as error:
    datasets.load("lama", data_dir=data_dir, model_dir=model_dir)
  for part in (str(archive), lama_archive.URL):
    assert part in str(error.value)
