"""Damaged files: whatever they hold, a reader returns or says why in a line.

Record types are found by themselves, and valid fields of each are made of its
types. Then fields are dropped, added and changed, and bytes cut and flipped.
"""

import contextlib
import copy
import functools
import importlib
import itertools
import json
import os
import pathlib
import re
import shutil

import hypothesis
import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st

import experiments
import tff_shift
from experiments.papers import costs
from experiments.papers import plan_file
from experiments.papers import specification
from tff_shift import records
from tff_shift.data.texts import tokens
from tff_shift.models.networks import llama_checkpoint
from tff_shift.models.networks import llama_random
from tff_shift.reporting import run_contents
from tff_shift.reporting import run_folders
from tff_shift.reporting import summary
from tff_shift.serving import description
from tff_shift.simulation.storage import encoding
from tff_shift.simulation.storage import results
from tff_shift.simulation.storage import run_records

_SEEDED = hypothesis.settings(
  max_examples=50, derandomize=True, database=None, deadline=None
)


def _kinds():
  """Finds all records of the product."""
  for package in (tff_shift, experiments):
    root = pathlib.Path(package.__file__).parent
    for path in sorted(root.rglob("*.py")):
      if re.search(r"\(records(_lib)?\.Record\b", path.read_text()):
        parts = path.relative_to(root.parent).with_suffix("").parts
        importlib.import_module(".".join(parts))

  def below(kind):
    for each in kind.__subclasses__():
      yield each
      yield from below(each)

  return sorted(
    {
      each
      for each in below(records.Record)
      if each.__module__.startswith(("tff_shift.", "experiments."))
    },
    key=lambda each: f"{each.__module__}.{each.__qualname__}",
  )


KINDS = _kinds()


def run_summary():
  return summary.RunSummary(
    algorithm="fed_avg",
    dataset="circle",
    setting={"dirichlet": float("inf"), "rate": 0.5},
    metrics_by_seed={
      seed: {"accuracy": 50.0 + seed, "loss": float("nan")} for seed in (0, 1)
    },
    rounds=3,
    seconds_per_round=0.5,
    num_diverged=[0, 2],
    left_out={"training": ["a", "b"]},
  )


# Of those whose fields must agree in more than their types say.
# The width is that of two heads of an even size.
_WIDTH = {"hidden_size": 4}
EXAMPLES = {
  costs._Guesses: {"evaluation": {"default": 1.0, "of_a_period": 2.0}},
  specification.Setting: {"flag": "", "flags": {}},
  # A real one, for its names belong together.
  specification.Specification: specification.load(
    specification.names()[0]
  ).to_fields(),
  run_records.Metric: run_summary().to_record().metrics["accuracy"].to_fields(),
  # Names differ, and each column of x has one.
  description.Description: {
    "input_shape": [2],
    "class_names": ["a", "b"],
    "client_names": ["a", "b"],
    "feature_names": ["a", "b"],
  },
  llama_checkpoint.Config: _WIDTH,
  llama_checkpoint.ConfigFile: _WIDTH,
}
_TEXTS = ("text", "0" * 64, "2026-01-02T03:04:05+00:00")


@functools.cache
def example(kind):
  """Returns valid fields of a record, all of them."""
  # Numbers that differ and grow.
  counter = itertools.count(2)
  fields = {
    field.encode_name: _value(field.type, counter)
    for field in msgspec.inspect.type_info(kind).fields
  }
  return fields | EXAMPLES.get(kind, {})


def _value(kind, counter, place=0):
  """Returns a valid value of a type."""
  inspect = msgspec.inspect
  match kind:
    case inspect.UnionType():
      return _value(kind.types[0], counter, place)
    case inspect.StructType():
      return example(kind.cls)
    case inspect.IntType():
      return 2 + place
    case inspect.FloatType():
      return float(next(counter))
    case inspect.StrType():
      return next(t for t in _TEXTS if re.search(kind.pattern or "", t))
    case inspect.LiteralType():
      return kind.values[place]
    case inspect.DictType():
      return {"key": _value(kind.value_type, counter)}
    case inspect.VarTupleType() | inspect.ListType():
      return [_value(kind.item_type, counter, place) for place in range(2)]
    case inspect.BoolType():
      return False
    case inspect.NoneType():
      return None
    case inspect.AnyType():
      return [1, "any"]
  raise TypeError(f"no example of {kind}; teach this function the type")


def text_of(kind, fields):
  """Returns a file with fields, which may be wrong, and the right digest."""
  if isinstance(fields, dict):
    if kind.FORMAT is not None:
      fields = {"format": kind.FORMAT} | fields
    if kind.HAS_DIGEST:
      fields = {"digest": records.digest(fields)} | fields
  return json.dumps(fields)


def check_refusal(error):
  """Asserts that an error is one line for the user."""
  assert type(error) in (ValueError, FileNotFoundError), repr(error)
  assert str(error).isprintable()
  assert 0 < len(str(error)) < 700


def _nested(depth):
  value = 1
  for _ in range(depth):
    value = [value]
  return value


_WRONG = st.sampled_from(
  [
    *(None, True, 0, -1, 1, 3, 2**31, 10**9, 10**30, -(10**30)),
    *(0.5, -0.0, 1e308, -1e-320, "", "x", "../x", "0" * 64, "nan", "inf"),
    *("\n\x1b[31m\x00", "long" * 10_000, "\u2028\u202e", [], {}, [[]], [None]),
    *({"": None}, {"a\nb": 1}, {"key": {}}, _nested(60), [1] * 1000),
  ]
).map(copy.deepcopy)


@st.composite
def damaged_fields(draw, fields):
  """Draws fields in which something is dropped, added or changed."""
  fields = json.loads(json.dumps(fields))
  for _ in range(draw(st.integers(1, 3))):
    # Goes down from the whole to some container, then changes it.
    at = fields
    while True:
      keys = list(at) if isinstance(at, dict) else list(range(len(at)))
      deeper = [key for key in keys if isinstance(at[key], dict | list)]
      if not deeper or draw(st.booleans()):
        break
      at = at[draw(st.sampled_from(deeper))]
    how = draw(st.sampled_from(["drop", "change", "add"]))
    if how == "add" or not keys:
      if isinstance(at, dict):
        at[draw(st.sampled_from(["unknown", "key", "a\nb", "x" * 999]))] = 1
      else:
        at.append(draw(_WRONG))
    elif how == "drop":
      del at[draw(st.sampled_from(keys))]
    else:
      at[draw(st.sampled_from(keys))] = draw(_WRONG)
  return fields


@st.composite
def damaged_bytes(draw, content):
  """Draws bytes with a part cut out, doubled or changed."""
  start = draw(st.integers(0, len(content)))
  end = draw(st.integers(start, len(content)))
  part = draw(
    st.sampled_from([b"", content[start:end] * 2])
    | st.binary(max_size=3)
    | st.sampled_from([b"[" * 1000, b"9" * 5000, b"NaN", b"1e999", b"\xff"])
  )
  return content[:start] + part + content[end:]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__qualname__)
class TestRecords:
  def test_example_comes_back(self, kind):
    record = records.decode(text_of(kind, example(kind)), kind)
    assert records.decode(records.encode(record), kind) == record

  def test_defaults_come_back(self, kind):
    fields = example(kind)
    required = {
      field.encode_name: fields[field.encode_name]
      for field in msgspec.inspect.type_info(kind).fields
      if field.required
    }
    required |= EXAMPLES.get(kind, {})
    record = records.decode(text_of(kind, required), kind)
    assert records.decode(records.encode(record), kind) == record

  def test_field_is_named(self, kind):
    fields = example(kind)
    for field in msgspec.inspect.type_info(kind).fields:
      name = field.encode_name
      left = {each: fields[each] for each in fields if each != name}
      if field.required:
        with pytest.raises(ValueError, match=f"the field {name} is missing"):
          records.decode(text_of(kind, left), kind)
      if isinstance(field.type, msgspec.inspect.AnyType):
        continue
      for wrong in ([{}], {"a\n": []}, True):
        try:
          records.decode(text_of(kind, fields | {name: wrong}), kind)
        except ValueError as error:
          check_refusal(error)
          assert name in str(error)
          break
      else:
        pytest.fail(f"{name} takes a list, a mapping and a truth value")

  def test_unknown_field_is_named(self, kind):
    if not msgspec.inspect.type_info(kind).forbid_unknown_fields:
      pytest.skip("files of others, with fields that nobody here reads")
    text = text_of(kind, example(kind) | {"un\nknown": 1})
    with pytest.raises(ValueError, match=r"the field un\\nknown is unknown"):
      records.decode(text, kind)

  @hypothesis.given(data=st.data())
  @_SEEDED
  def test_any_fields(self, kind, data):
    fields = data.draw(damaged_fields(example(kind)))
    try:
      record = records.decode(text_of(kind, fields), kind)
    except ValueError as error:
      check_refusal(error)
    else:
      assert records.decode(records.encode(record), kind) == record

  @hypothesis.given(data=st.data())
  @_SEEDED
  def test_any_bytes(self, kind, data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "fuzzed.json"
    whole = records.decode(text_of(kind, example(kind)), kind)
    path.write_bytes(
      data.draw(damaged_bytes(records.encode(whole).encode("utf-8")))
    )
    try:
      records.read(path, kind)
    except ValueError as error:
      check_refusal(error)
      assert str(error).startswith(str(path))


def write_run(folder):
  run = results.RunFolder(folder)
  # Not by `write_config`: each example is the same on each machine.
  records.write(
    folder / run_records.CONFIG,
    run_records.RunConfig(
      flags={"seeds": ["0", "1"], "algorithm": ["fed_avg"]},
      versions={"python": "3.11.7", "tff_shift": None},
      git_commit="0" * 40,
      start_time="2026-01-02T03:04:05+00:00",
      command_line="python -m experiments.evolving --dataset='the circle'",
      cores=2,
    ),
  )
  for seed in (0, 1):
    run.write_metrics({"seed": seed, "round": 3, "accuracy": 50.0 + seed})
  run.write_summary([run_summary().to_record()])


def read_run(folder):
  run = run_folders.read(folder)
  run_contents.to_contents(
    [run], metrics=["accuracy"], title="t", command="c", start=folder
  )
  results.RunFolder(folder).read_config()


def write_model(folder):
  fields = example(description.Description)
  description.write(folder, records.convert({"format": 2} | fields, DESCRIBED))
  description.write_vocabulary(folder, ["<padding>", "<unknown>", "word"])


DESCRIBED = description.Description


def read_model(folder):
  description.read(folder)
  description.read_vocabulary(folder)


def write_language_model(folder):
  size = tokens.write_word_tokenizer(folder / tokens.TOKENIZER_FILE, ["a", "b"])
  config = llama_checkpoint.Config(
    vocabulary_size=size,
    width=4,
    num_layers=2,
    num_heads=2,
    mlp_width=4,
    rope_scaling=records.convert(
      example(llama_checkpoint.RopeScaling), llama_checkpoint.RopeScaling
    ),
  )
  llama_random.write(folder, config, seed=0)
  os.rename(folder / llama_checkpoint.WEIGHTS_FILE, folder / "part.safetensors")
  index = {"weight_map": dict.fromkeys(config.shapes(), "part.safetensors")}
  (folder / llama_checkpoint.INDEX_FILE).write_text(json.dumps(index))


def read_language_model(folder):
  llama_checkpoint.read(folder)
  tokens.tokenize(["a b"], folder, 3)


def write_plan(folder):
  plan_file.write(
    folder, plan_file.Plan(reduce={"rounds": "3"}, more_flags=("--rounds=3",))
  )


def read_plan(folder):
  plan = plan_file.read(folder)
  if plan is not None:
    plan.check("evolving")


# What writes the files of a folder, and what reads them.
READERS = {
  "run": (write_run, read_run),
  "plan": (write_plan, read_plan),
  "model": (write_model, read_model),
  "language model": (write_language_model, read_language_model),
}


@pytest.fixture(scope="module", params=READERS)
def folder(request, tmp_path_factory):
  """A folder that a reader takes, the reader, and the contents of its files."""
  write, read = READERS[request.param]
  path = tmp_path_factory.mktemp("folder")
  write(path)
  read(path)
  return path, read, {each: each.read_bytes() for each in path.iterdir()}


@contextlib.contextmanager
def changed(path, content):
  """Has other things in the place of a file for a while."""
  kept = path.with_name("kept")
  os.rename(path, kept)
  try:
    match content:
      case "folder":
        path.mkdir()
      case "pipe":
        os.mkfifo(path)
      case None:
        pass
      case _:
        path.write_bytes(content)
    yield
  finally:
    if path.is_dir():
      shutil.rmtree(path)
    path.unlink(missing_ok=True)
    os.rename(kept, path)


def check_read(folder, path):
  """Returns whether a folder is read; asserts that a refusal names a file."""
  _, read, _ = folder
  try:
    read(path.parent)
  except (ValueError, FileNotFoundError) as error:
    check_refusal(error)
    assert path.name in str(error)
    return False
  return True


class TestReaders:
  @pytest.mark.slow
  @hypothesis.given(data=st.data())
  @hypothesis.settings(_SEEDED, max_examples=120)
  def test_any_bytes(self, folder, data):
    files = folder[-1]
    path = data.draw(st.sampled_from(sorted(files)))
    with changed(path, data.draw(damaged_bytes(files[path]))):
      check_read(folder, path)

  @hypothesis.given(data=st.data())
  @_SEEDED
  def test_any_fields(self, folder, data):
    files = folder[-1]
    path = data.draw(
      st.sampled_from(sorted(p for p in files if p.suffix == ".json"))
    )
    fields = data.draw(damaged_fields(json.loads(files[path])))
    with changed(path, json.dumps(fields).encode("utf-8")):
      check_read(folder, path)

  def test_what_is_no_file(self, folder):
    for path, content in itertools.product(
      folder[-1],
      ["folder", "pipe", b"", b"\0" * 9, b"[" * 100_000, b"{}", b"[]"],
    ):
      with changed(path, content):
        # Rows that were not written whole are none.
        is_table = path.suffix == ".csv" and isinstance(content, bytes)
        assert check_read(folder, path) == is_table

  def test_missing_file(self, folder):
    for path in folder[-1]:
      with changed(path, None):
        check_read(folder, path)


@pytest.mark.slow
@hypothesis.given(data=st.data())
@_SEEDED
def test_measured_values(data):
  """Those of checkpoints, which have no fields of their own."""
  value = encoding.to_json(
    {"array": np.arange(4.0).reshape(2, 2), "loss": float("nan"), "name": None}
  )
  with contextlib.suppress(ValueError, TypeError):
    encoding.from_json(data.draw(damaged_fields(value)))
