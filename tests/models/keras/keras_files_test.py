"""Files of Keras models: what tf.keras has saved is read, all else refused."""

import os
import shutil
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import archives
from tests.fixtures.keras_models import sequential
from tests.fixtures.refusals import refused
from tff_shift._util import memory
from tff_shift.models.keras import keras_files
from tff_shift.models.keras import keras_names

layers = tf.keras.layers

# What of a kind of file is where.
FILES = {
  "keras": "whole.keras",
  "whole h5": "whole.h5",
  "weights in h5": "weights.hdf5",
  "weights like keras": "whole.weights.h5",
  "saved model": "saved",
  "without metadata": "plain",
  "exported": "exported",
}


def build_whole(is_large):
  """A model in a model in a model, with statistics.

  A large one has attention and recurrent layers, which make a SavedModel slow.
  """
  inner = sequential(
    (4, 3),
    layers.Conv1D(3, 1, name="convolution"),
    layers.BatchNormalization(),
    name="inner",
  )
  x = layers.Input((4, 3))
  # Two of one shape.
  y = layers.Dense(3)(layers.Dense(3)(x))
  base = tf.keras.Model(x, inner(y), name="base")
  x = layers.Input((4, 3))
  y = base(layers.Rescaling(0.5)(x))
  if is_large:
    y = layers.MultiHeadAttention(2, 3, name="attention")(y, y)
    y = layers.Bidirectional(layers.SimpleRNN(2), name="both")(y)
  else:
    y = layers.Flatten()(y)
  y = layers.Dense(2, name="named")(layers.Dropout(0.5)(layers.Dense(4)(y)))
  return tf.keras.Model(x, layers.Dense(2)(y), name="whole")


def with_weights(model):
  """Gives a model weights that differ, and an optimizer that has arrays too."""
  generator = np.random.default_rng(0)
  model.set_weights(
    [generator.uniform(0.5, 1.5, w.shape) for w in model.get_weights()]
  )
  model.compile("adam")
  model.optimizer.build(model.trainable_variables)
  return model


@pytest.fixture(scope="module")
def models():
  """The model that is in a file, by its kind."""
  # So that no name is the first of its kind.
  layers.Dense(1), layers.BatchNormalization(), layers.InputLayer((1,))
  large, small = (with_weights(build_whole(each)) for each in (True, False))
  return {kind: small if "." not in FILES[kind] else large for kind in FILES}


@pytest.fixture(scope="module")
def folder(models, tmp_path_factory):
  """A file of each kind."""
  folder = tmp_path_factory.mktemp("files")
  for kind, model in models.items():
    path = folder / FILES[kind]
    if kind.startswith("weights"):
      model.save_weights(path)
    elif kind == "exported":
      model.export(str(path))
    elif kind == "without metadata":
      tf.saved_model.save(model, str(path))
    else:
      model.save(path)
  return folder


@pytest.fixture
def copied(folder, tmp_path):
  """Returns `copied(kind)`, the path of a file that a test may damage."""

  def copy(kind):
    path = folder / FILES[kind]
    (shutil.copytree if path.is_dir() else shutil.copy)(
      path, tmp_path / path.name
    )
    return tmp_path / path.name

  return copy


def refusal(path, error=ValueError):
  with pytest.raises(error) as found:
    keras_files.read(path)
  (line,) = str(found.value).splitlines()
  assert line.isprintable()
  return line


def expected_weights(whole):
  """The weights by names that are written by hand, as from_keras counts."""
  base = whole.get_layer("base")
  inner = base.get_layer("inner")
  first, second = (x for x in base.layers if isinstance(x, layers.Dense))
  hidden, named, last = (x for x in whole.layers if isinstance(x, layers.Dense))
  (statistics,) = (
    x for x in inner.layers if isinstance(x, layers.BatchNormalization)
  )
  owners = {
    "backbone/base/dense.1": first,
    "backbone/base/dense.2": second,
    "backbone/base/inner/convolution": inner.get_layer("convolution"),
    "backbone/dense.1": hidden,
    "backbone/named": named,
    "head/dense.2": last,
  }
  if len(whole.weights) > 20:
    attention, both = whole.get_layer("attention"), whole.get_layer("both")
    owners |= {
      "backbone/attention/query": attention._query_dense,
      "backbone/attention/key": attention._key_dense,
      # Joined by an underscore, as parts of one layer may be.
      "backbone/attention_value": attention._value_dense,
      "backbone/attention/attention_output": attention._output_dense,
      "backbone/both_forward": both.forward_layer.cell,
      "backbone/both_backward": both.backward_layer.cell,
    }
  values = {}
  for path, owner in owners.items():
    for name in ("kernel", "recurrent_kernel", "bias"):
      if hasattr(owner, name):
        values[f"{path}/{name}"] = getattr(owner, name).numpy()
  for name in ("gamma", "beta", "moving_mean", "moving_variance"):
    values[f"backbone/base/inner/batch.normalization.1/{name}"] = getattr(
      statistics, name
    ).numpy()
  assert len(values) == len(whole.weights)
  return values


class TestRead:
  @pytest.mark.slow
  @pytest.mark.parametrize("kind", list(FILES)[:5])
  def test_arrays_are_those_of_the_layers_of_the_names(
    self, kind, models, folder
  ):
    whole = models[kind]
    contents = keras_files.read(folder / FILES[kind])
    contents = keras_files.with_names(contents, keras_files.layers_of(whole))
    expected = expected_weights(whole)
    found = keras_names.match(contents, expected)
    assert set(found) == set(expected)
    for name, value in expected.items():
      np.testing.assert_array_equal(found[name], value, err_msg=name)

  @pytest.mark.slow
  @pytest.mark.parametrize("kind", list(FILES)[5:])
  def test_what_does_not_know_of_models_in_models_says_so(
    self, kind, models, folder
  ):
    whole = models[kind]
    contents = keras_files.read(folder / FILES[kind])
    assert len(contents.arrays) == len(whole.weights)
    for each, variable in zip(contents.arrays, whole.weights, strict=True):
      name = "/".join((*each.layers, each.name))
      assert f"{name}:0" == variable.name
      np.testing.assert_array_equal(each.value, variable.numpy())
    with refused(r"save it by model\.save$"):
      keras_names.match(contents, expected_weights(whole))

  def test_layers_come_with_their_classes(self, folder):
    contents = keras_files.read(folder / FILES["keras"])
    _, _, base, attention, *_ = contents.layers
    assert (base.name, base.class_name) == ("base", "Functional")
    assert base.layers[-1].layers[1].name == "convolution"
    assert attention == ("attention", "MultiHeadAttention", ())

  def test_classes_are_counted_beyond_ten(self, tmp_path):
    model = sequential((1,), *(layers.Dense(1) for _ in range(12)))
    model.set_weights(
      [np.full(w.shape, i) for i, w in enumerate(model.weights)]
    )
    model.save_weights(tmp_path / "many.weights.h5")
    model.save(tmp_path / "many.keras")
    names = [
      f"backbone/dense.{number}/{name}"
      for number in range(1, 13)
      for name in ("kernel", "bias")
    ]
    for name in ("many.weights.h5", "many.keras"):
      found = keras_names.match(keras_files.read(tmp_path / name), names)
      assert [found[each].item() for each in names] == list(range(24))


class TestRefusals:
  @pytest.mark.parametrize(
    ("name", "make", "message"),
    [
      ("a.keras", lambda path: path.write_bytes(b"a"), "it is not a .keras f"),
      ("a.h5", lambda path: path.write_bytes(b"a"), "it is not an HDF5 file"),
      ("a", os.mkdir, "without saved_model.pb"),
      ("a.keras", os.mkfifo, "it is a named pipe"),
    ],
  )
  def test_other_files(self, name, make, message, tmp_path):
    make(tmp_path / name)
    assert message in refusal(tmp_path / name)

  @pytest.mark.parametrize("kind", list(FILES)[:4])
  def test_cut_off(self, kind, copied):
    path = copied(kind)
    os.truncate(path, path.stat().st_size // 2)
    assert refusal(path).startswith("it ")

  @pytest.mark.parametrize("pattern", ["*.index", "*.data-*"])
  def test_saved_model_without_all_of_a_file(self, pattern, copied):
    path = copied("saved model")
    (file,) = (path / "variables").glob(pattern)
    os.truncate(file, file.stat().st_size // 2)
    assert "damaged or cut off" in refusal(path)
    file.unlink()
    assert "lacks" in refusal(path)

  def test_changed_byte_of_a_variable(self, copied):
    path = copied("saved model")
    (file,) = (path / "variables").glob("*.data-*")
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    assert "it is damaged or cut off" in refusal(path)

  def test_damaged_metadata(self, copied):
    path = copied("saved model")
    (path / "keras_metadata.pb").write_bytes(b"\xff" * 9)
    assert refusal(path) == "its keras_metadata.pb is damaged; save it again"

  @pytest.mark.parametrize("left_out", ["config.json", "model.weights.h5"])
  def test_archive_without_a_file(self, left_out, copied):
    path = copied("keras")
    archives.rewrite(path, lambda contents: contents.pop(left_out))
    assert f"it has no {left_out}" in refusal(path)

  @pytest.mark.parametrize(
    "config", ["{", "[" * 100_000, '{"config": 3}', '{"config": {"layers": 1}}']
  )
  def test_configuration_that_is_none(self, config, models, copied):
    path = copied("keras")
    archives.rewrite(path, lambda files: files.update({"config.json": config}))
    if config[0] == "[" or config == "{":
      assert "config.json is damaged" in refusal(path)
    else:
      # Then layers are called after their classes, which fit none of names.
      with refused("the model has no weight"):
        keras_names.match(
          keras_files.read(path), expected_weights(models["keras"])
        )

  def test_archive_that_unpacks_to_more_than_the_memory(
    self, copied, monkeypatch
  ):
    path = copied("keras")
    zeros = {"model.weights.h5": bytes(2**22)}
    archives.rewrite(path, lambda files: files.update(zeros))
    assert path.stat().st_size < 2**14
    monkeypatch.setattr(memory, "limit", lambda: 2**22)
    monkeypatch.setattr(
      zipfile.ZipFile, "read", lambda *_: pytest.fail("it was unpacked")
    )
    assert "model.weights.h5 is too large" in refusal(
      path, memory.TooLargeError
    )

  def test_arrays_larger_than_the_memory(self, copied, monkeypatch):
    monkeypatch.setattr(memory, "limit", lambda: 40)
    for kind in ("whole h5", "saved model"):
      assert "too large" in refusal(copied(kind), memory.TooLargeError)

  @pytest.mark.parametrize(
    ("dtype", "value"),
    [(h5py.string_dtype(), "a"), ("S3", b"abc"), ("c8", 1j)],
  )
  def test_arrays_of_something_else(self, dtype, value, tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
      file.attrs["layer_names"] = ["dense"]
      group = file.create_group("dense")
      group.attrs["weight_names"] = ["kernel:0"]
      group.create_dataset("kernel:0", data=value, dtype=dtype)
    assert "and no numbers" in refusal(path)

  def test_hdf5_of_something_else(self, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
      file["x"] = np.zeros(3)
    assert "it has no names of layers" in refusal(tmp_path / "a.h5")

  @pytest.mark.slow
  @pytest.mark.parametrize(
    ("number", "size"), [(10_000, 3), (3, 100_000)], ids=["many", "long"]
  )
  def test_lists_of_names_that_come_in_pieces(self, number, size, tmp_path):
    names = [f"{each:0>{size}}" for each in range(number)]
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
      for piece in range(5):
        file.attrs[f"layer_names{piece}"] = names[piece::5]
      for name in names:
        file.create_group(name)
      file[names[-1]].attrs["weight_names"] = ["kernel:0"]
      file[names[-1]]["kernel:0"] = np.float32(7)
    (array,) = keras_files.read(path).arrays
    assert array == ((names[-1],), "kernel", 7)


def contents(*arrays, layers=()):
  """What a file of these paths holds, each with its number as the array."""
  paths = [each.split("/") for each in arrays]
  return keras_files.Contents(
    tuple(
      keras_files.Array(tuple(path[:-1]), path[-1], np.array(number))
      for number, path in enumerate(paths)
    ),
    layers,
  )


class TestMatch:
  def match(self, given, *names):
    found = keras_names.match(given, names)
    return {name: value.item() for name, value in found.items()}

  @pytest.mark.parametrize(
    ("layers", "names"),
    [
      # Names of one process do not tell what another has called so.
      (
        [("dense_8", None), ("dense_9", None)],
        ("backbone/dense_9/kernel", "head/dense_10/kernel"),
      ),
      # A class tells whether a name is Keras's.
      (
        [("dense_8", "Mine"), ("dense_9", "Dense")],
        ("backbone/dense_8/kernel", "head/dense.1/kernel"),
      ),
      (
        [("mine.1", "Dense"), ("dense_9", "Dense")],
        ("backbone/mine.1/kernel", "head/dense.1/kernel"),
      ),
    ],
    ids=["counted", "by class", "with a number of the user"],
  )
  def test_names_of_keras_are_counted_and_others_kept(self, layers, names):
    given = contents(
      *(f"{name}/kernel" for name, _ in layers),
      layers=[keras_files.Layer(*each) for each in layers],
    )
    assert self.match(given, *names) == dict(zip(names, (0, 1), strict=True))

  def test_models_between_may_be_left_out_where_it_is_clear(self):
    given = contents("base/a/kernel", "base/b/kernel")
    assert self.match(
      given, "backbone/base/one/a/kernel", "backbone/base/two/b/kernel"
    ) == {"backbone/base/one/a/kernel": 0, "backbone/base/two/b/kernel": 1}
    with refused("'base/a/kernel'"):
      self.match(
        given,
        "backbone/base/one/a/kernel",
        "backbone/base/two/a/kernel",
        "backbone/base/b/kernel",
      )

  def test_what_a_layer_has_too_much_is_named(self):
    given = contents("norm/gamma", "norm/moving_mean")
    with refused(r"it has 'norm/moving_mean', .* layer's are gamma$"):
      self.match(given, "backbone/norm/gamma")

  def test_layers_too_many_are_named(self):
    given = contents(*(f"{name}/kernel" for name in "abcde"))
    with refused(
      "^it has 'b/kernel', 'c/kernel', 'd/kernel' and 1 more, for which the"
      r" model has no weight \(still without an array: 'head/z/kernel'\)$"
    ):
      self.match(given, "backbone/a/kernel", "head/z/kernel")

  def test_one_name_in_both_parts_is_not_guessed(self):
    with refused("'a/kernel'"):
      self.match(contents("a/kernel"), "backbone/a/kernel", "head/a/kernel")

  def test_two_weights_of_one_name_are_not_guessed(self):
    given = contents("rnn/first_cell/kernel", "rnn/second_cell/kernel")
    with refused("several nested weights 'kernel'"):
      self.match(given, "backbone/rnn/kernel", "backbone/rnn/recurrent_kernel")
