"""Loads models written by `export` and predicts, with TensorFlow only."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift.data import array_files
from tff_shift.data import examples
from tff_shift.data.texts import text
from tff_shift.serving import columns
from tff_shift.serving import description


class Routing(NamedTuple):
  """The routes of examples.

  Attributes:
    routes: The best client for each example, [n] int32.
    probabilities: The probability of each client, [n, num_clients] float32.
  """

  routes: tf.Tensor
  probabilities: tf.Tensor


class Answers(NamedTuple):
  """The answers of clients.

  Attributes:
    classes: The predicted labels, [n] int32; -1 if a client's logits are not
      finite.
    routes: The clients that predicted them, [n] int32.
  """

  classes: tf.Tensor
  routes: tf.Tensor


class Predictor:
  """A trained model, or a whole federation.

  Its methods take examples `x`, [n, ...] of `input_shape`, as arrays or
  tensors, of every type that training takes, and validate and cast them as
  training does (`examples.checked_array`). Columns of data frames are matched
  by name, and those of the label, the client and the time may be there
  (`columns.matched`). They return tensors, and also work
  inside a `tf.function`, where values are unknown: such a tensor must have
  `input_dtype`. Each method raises a ValueError if the model does not support
  it, or the examples are not valid.

  Attributes:
    algorithm: The name of the algorithm.
    num_classes: The number of classes.
    schema: The names of the data of the run.
    class_names: The names of the classes, or None.
    clients: The clients whose own models are included.
    client_names: Their names, or None.
    feature_names: The names of the columns of x, or None.
    functions: The methods that this model supports.
    input_shape: The shape of one example.
    input_dtype: Its `tf.DType`.
    request_shape: The shape of a request of `predict_for`, or None.
    vocabulary: For a model of titles, the word of each id; otherwise None.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    """Loads the model in a folder; `load` also finds it one level below."""
    folder = pathlib.Path(folder)
    self._description = described = description.read(folder)
    self.algorithm = described.algorithm
    self.num_classes = described.num_classes
    self.schema = described.schema
    self.class_names = described.schema.classes or None
    self.clients = tuple(described.clients)
    self.client_names = described.client_names
    self.feature_names = described.schema.features
    self.functions = tuple(described.functions)
    self.input_shape = tuple(described.input_shape)
    self.input_dtype = tf.as_dtype(described.input_dtype)
    request_shape = described.request_shape
    self.request_shape = request_shape and tuple(request_shape)
    self.vocabulary = description.read_vocabulary(folder)
    if not self.functions:
      raise ValueError(
        f"{folder} contains weights but no model: {self.algorithm}"
        " has no model at the server, and no clients were saved"
        " (--save_clients)"
      )
    try:
      self._model = tf.saved_model.load(os.fspath(folder))
    # The type of the error depends on the damaged bytes.
    except Exception as error:
      raise ValueError(
        f"{folder} holds a model that is damaged or incomplete"
        f" ({array_files.first_line(error)}); export it once more"
      ) from error

  def ids_of(self, titles: Sequence[str]) -> np.ndarray:
    """Converts titles to the inputs of a model of titles.

    Args:
      titles: Texts. Words that are not in the vocabulary become the unknown
        word.

    Returns:
      Ids of their words, [n, length] int32.

    Raises:
      ValueError: If the model does not take titles.
    """
    if self.vocabulary is None:
      raise ValueError(
        f"this model of {self.algorithm} has no vocabulary; it takes"
        f" {self.input_dtype.name} {list(self.input_shape)}, and no texts"
      )
    words = [text.words_of(title) for title in titles]
    return text.ids_of(words, self.vocabulary, *self.input_shape)

  def checked(self, x: Any) -> np.ndarray:
    """Validates examples and casts them to `input_dtype`, as training does.

    Args:
      x: The examples, an array or a tensor whose values are known.

    Returns:
      The examples, [n, ...].

    Raises:
      ValueError: If they are not valid; one line that names the first invalid
        example.
    """
    x = columns.matched(x, self.schema)
    found = self._cast(x, (None, *self.input_shape), self.input_dtype, "x")
    if self.vocabulary is not None:
      text.check_ids(found, len(self.vocabulary), self.algorithm)
    return found

  def predict(self, x: Any) -> tf.Tensor:
    """Returns the server's logits, [n, num_classes] float32."""
    return self._function("predict")(self._examples(x))

  def predict_as(self, client: Any, x: Any) -> tf.Tensor:
    """Returns the logits of a client's own model.

    Args:
      client: The client's name, if clients have names, otherwise its number:
        one of `clients`. A tensor, an int32 scalar, is always the number.
      x: The examples.

    Returns:
      [n, num_classes] float32.

    Raises:
      ValueError: If it is not among the clients; for a tensor in a
        `tf.function`, TensorFlow's `InvalidArgumentError` when it runs.
    """
    function = self._function("predict_as")
    if not tf.is_tensor(client):
      client = self.number_of(client)
    return function(tf.cast(client, tf.int32), self._examples(x))

  def number_of(self, client: Any) -> int:
    """Returns the number of a client, one of `clients`.

    Args:
      client: Its name; the number 3 is the name "3". Without names, its number.

    Raises:
      ValueError: If it is not among the clients; one line.
    """
    if self.client_names is not None:
      known = dict(zip(self.client_names, self.clients, strict=True))
      if str(client) in known:
        return known[str(client)]
    elif client in self.clients:
      return int(client)
    raise ValueError(
      f"there is no client {client!r} in this model of {self.algorithm}; there"
      f" are {', '.join(map(str, self.client_names or self.clients))}"
    )

  def guide(self, x: Any) -> Routing:
    """Returns the best client for each example."""
    found = self._function("guide")(self._examples(x))
    return Routing(found["routes"], found["probabilities"])

  def answer(self, x: Any) -> Answers:
    """Predicts each example with the client that the guide chooses."""
    found = self._function("answer")(self._examples(x))
    return Answers(found["classes"], found["routes"])

  def vote(self, x: Any) -> tf.Tensor:
    """Returns the majority class, [n] int32; ties go to the lowest class."""
    return self._function("vote")(self._examples(x))

  def predict_for(self, request: Any, x: Any) -> tf.Tensor:
    """Returns the logits of the model that the server makes for a request.

    Args:
      request: A client's request for a model, such as the vector r of Fed-3DA:
        `request_shape` float32.
      x: The examples.

    Returns:
      [n, num_classes] float32.
    """
    function = self._function("predict_for")
    shape = self.request_shape
    if _is_symbolic(request):
      self._check_symbolic(request, shape, tf.float32, "request")
    else:
      request = self._cast(request, shape, tf.float32, "request")
    return function(request, self._examples(x))

  def _function(self, name: str) -> Any:
    if name not in self.functions:
      raise ValueError(
        f"this model of {self.algorithm} has no {name}; it has"
        f" {', '.join(self.functions)}"
        + (
          ""
          if self.clients or name not in ("predict_as", "answer", "vote")
          else " (no clients were saved: --save_clients)"
        )
      )
    return getattr(self._model, description.attribute(name))

  def _examples(self, x: Any) -> tf.Tensor:
    if not _is_symbolic(x):
      return tf.convert_to_tensor(self.checked(x))
    shape = (None, *self.input_shape)
    self._check_symbolic(x, shape, self.input_dtype, "x")
    return tf.convert_to_tensor(x)

  def _cast(self, value, shape, dtype, name) -> np.ndarray:
    """Validates and casts a value; errors describe the model's inputs."""
    if tf.is_tensor(value):
      value = np.asarray(value)
    try:
      return examples.checked_array(
        value, name, shape=shape, dtype=dtype.as_numpy_dtype
      )
    except ValueError as error:
      raise ValueError(f"{error}; {self._taken(shape, dtype)}") from error

  def _check_symbolic(self, value, shape, dtype, name) -> None:
    """Validates the static type and shape of a tensor."""
    if not value.shape.is_compatible_with(shape) or value.dtype != dtype:
      raise ValueError(
        f"{name} is {value.dtype.name} {value.shape};"
        f" {self._taken(shape, dtype)}"
      )

  def _taken(self, shape, dtype) -> str:
    wanted = ", ".join("n" if size is None else str(size) for size in shape)
    return f"this model of {self.algorithm} takes {dtype.name} ({wanted})"


def _is_symbolic(value: Any) -> bool:
  """Returns whether a value is a graph tensor, without values."""
  return tf.is_tensor(value) and not tf.executing_eagerly()


def load(folder: str | os.PathLike[str]) -> Predictor:
  """Loads a trained model.

  A saved model is a program: loading it can run operations of its graph, so
  load only folders that you trust. Before that, `model.json` is validated.

  Args:
    folder: The folder of a model, or one that has exactly one below it, such as
      the output folder of a binary with one run.

  Returns:
    The model.

  Raises:
    FileNotFoundError: If there is no such folder.
    ValueError: If there is no model or several, or if it is damaged; one line.

  Examples:
    >>> from tff_shift.serving import export
    >>> model = ts.build_model("mlp", input_shape=(2,), num_classes=2, width=4)
    >>> algorithm = ts.build_algorithm("fed_avg", model)
    >>> data = [ts.ClientDataset.from_arrays(np.eye(2), np.arange(2))]
    >>> with ts.execution.use("in_process"):
    ...   state = algorithm.initialize(np.int32([0, 0]))
    ...   export.export(algorithm, state, [()], data, folder / "model")
    >>> model = ts.load(folder / "model")
    >>> model.predict(np.zeros((3, 2), np.float32)).shape.as_list()
    [3, 2]
  """
  folder = pathlib.Path(folder)
  if not folder.is_dir():
    raise FileNotFoundError(f"there is no folder {str(folder)!r}")
  if (folder / description.FILE).is_file():
    return Predictor(folder)
  found = sorted(
    path.parent
    for path in folder.rglob(description.FILE)
    # The names of incomplete folders start with a dot.
    if not any(part.startswith(".") for part in path.relative_to(folder).parts)
  )
  if not found:
    raise ValueError(
      f"{str(folder)!r} holds no model (no {description.FILE}); name a folder"
      " that a binary has written with --save_model"
    )
  if len(found) > 1:
    raise ValueError(
      f"{str(folder)!r} holds {len(found)} models; name one of"
      f" {', '.join(map(str, found))}"
    )
  return Predictor(found[0])
