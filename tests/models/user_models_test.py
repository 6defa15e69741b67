"""Models of a user, by the name of a module and a function."""

import textwrap

import pytest
import tensorflow as tf

from tests.fixtures import tables
from tests.fixtures.refusals import refused
from tff_shift import models

_FILE = textwrap.dedent(
  """
  import tensorflow as tf

  from tff_shift import models

  layers = tf.keras.layers


  def build(input_shape, num_classes, width=8):
    return tf.keras.Sequential(
      [
        layers.InputLayer(input_shape),
        layers.Flatten(),
        layers.Dense(width, activation="relu"),
        layers.Dense(num_classes),
      ]
    )


  def split(input_shape, num_classes, input_dtype):
    return models.from_keras(
      build(input_shape, num_classes), input_dtype=input_dtype
    )


  def anything(input_shape, num_classes, **options):
    return build(input_shape, num_classes, options["width"])


  def raising(input_shape, num_classes):
    raise RuntimeError("two\\nlines")


  def number(input_shape, num_classes):
    return 3


  def other_shape(input_shape, num_classes):
    return build((5,), num_classes)


  def other_classes(input_shape, num_classes):
    return build(input_shape, num_classes + 1)


  def other_dtype(input_shape, num_classes):
    return models.from_keras(build(input_shape, num_classes))


  def softmax(input_shape, num_classes):
    model = build(input_shape, num_classes)
    model.layers[-1].activation = tf.keras.activations.softmax
    return model


  def nothing():
    pass


  constant = 3
  """
)


@pytest.fixture
def path(tmp_path):
  file = tmp_path / "mine.py"
  file.write_text(_FILE)
  return str(file)


def build(name, **options):
  return models.build(name, input_shape=(2, 3), num_classes=4, **options)


class TestBuild:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    "function, options, width",
    [
      ("build", {"width": 5}, 5),
      ("split", {"input_dtype": tf.uint8}, 8),
      ("anything", {"width": 7, "input_dtype": tf.float32}, 7),
    ],
  )
  def test_function_of_a_file_builds_the_model(
    self, path, function, options, width
  ):
    model = build(f"{path}:{function}", **options)
    assert model.name == f"mine:{function}"
    assert model.num_parameters == 6 * width + width + 4 * width + 4
    assert model.input_dtype == options.get("input_dtype", tf.float32)

  def test_function_of_a_module_builds_the_model(
    self, path, monkeypatch, tmp_path
  ):
    (tmp_path / "a_package_of_mine").mkdir()
    module = tmp_path / "a_package_of_mine" / "a_model.py"
    module.write_text(_FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = build("a_package_of_mine.a_model:build")
    assert model.name == "a_package_of_mine.a_model:build"
    assert model.embedding_size == 8

  def test_digest_is_that_of_the_file(self, path, tmp_path):
    digest = models.digest(f"{path}:build")
    assert len(digest) == 64
    with open(path, "a") as file:
      file.write("# Another version.\n")
    assert models.digest(f"{path}:build") != digest


@pytest.mark.parametrize(
  "name, message",
  tables.cases(r"""
"{path}:raising"
    RuntimeError: two lines
"{path}:number"
    must return a SplitModel or a Keras model; it returned
"{path}:other_shape"
    has input_shape \(5,\), and the data have \(2, 3
"{path}:other_classes"
    has num_classes 5, and the data have 4
"{path}:other_dtype"
    has input_dtype float32, and the data have uint8
"{path}:softmax"
    ends in softmax; logits are wanted
"{path}:nothing"
    must take input_shape and num_classes
"{path}:constant"
    there is no function 'constant'
"{path}:missing"
    there is no function 'missing'
"{path}x.py:build"
    there is no such file
"no_module_of_this_name:build"
    there is no module 'no_module_of_this
"{path}:"
    <module or file.py>:<function> is wanted
":build"
    <module or file.py>:<function> is wanted
"""),
)
def test_what_is_wrong_is_said_in_one_line(path, name, message):
  with refused(message):
    build(name.format(path=path), input_dtype=tf.uint8)


def test_options_are_those_of_the_function(path):
  assert models.options(f"{path}:build") == {"width"}
  with refused("no option 'depth'; its options: width"):
    build(f"{path}:build", depth=3)
