"""Asks a model that `export` has written, with TensorFlow alone."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift import library_logs
from tff_shift.data import examples
from tff_shift.data.texts import text
from tff_shift.serving import agreement
from tff_shift.serving import description


class Routing(NamedTuple):
  """Who is best equipped for each example.

  Attributes:
    routes: The clients, [n] int32.
    probabilities: Of each client, [n, num_clients] float32.
  """

  routes: tf.Tensor
  probabilities: tf.Tensor


class Answers(NamedTuple):
  """What clients predict.

  Attributes:
    classes: The predicted classes, [n] int32; -1 where a client's prediction is
      no number.
    routes: The clients that predicted them, [n] int32.
  """

  classes: tf.Tensor
  routes: tf.Tensor


class Predictor:
  """A model that was trained, or a whole federation.

  Its methods take examples `x`, [n, ...] of `input_shape`, as arrays or
  tensors, of every type that training takes, and check and cast them as
  training does (`examples.checked_array`). They give tensors, and work inside a
  `tf.function` as well, where values are not known: a tensor there must have
  `input_dtype`. Each raises a ValueError where the model cannot do what it is
  asked for, or the examples are not what it takes.

  Attributes:
    algorithm: The name of the algorithm.
    num_classes: The number of classes.
    class_names: Their names, or None.
    clients: The clients whose own models are there.
    functions: The methods that this model has.
    input_shape: The shape of one example.
    input_dtype: Its `tf.DType`.
    request_shape: The shape of a request of `predict_for`, or None.
    vocabulary: Of a model of titles, the word of each id; else None.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    """Loads a model; see `load`."""
    folder = pathlib.Path(folder)
    self._description = told = description.read(folder)
    self.algorithm = told.algorithm
    self.num_classes = told.num_classes
    self.class_names = told.class_names and tuple(told.class_names)
    self.clients = tuple(told.clients)
    self.functions = tuple(told.functions)
    self.input_shape = tuple(told.input_shape)
    self.input_dtype = tf.as_dtype(told.input_dtype)
    self.request_shape = told.request_shape and tuple(told.request_shape)
    self.vocabulary = description.read_vocabulary(folder)
    if not self.functions:
      raise ValueError(
        f"{folder} holds weights and nothing that predicts: {self.algorithm}"
        " has no model at the server, and no clients were saved"
        " (--save_clients)"
      )
    agreement.check_files(folder, told)
    try:
      # TensorFlow logs a traceback where fingerprint.pb, which nothing here
      # depends on, cannot be read, and goes on.
      with library_logs.without("absl", "Fingerprint was found, but"):
        self._model = tf.saved_model.load(os.fspath(folder))
    # Which error depends on the place of the damage.
    except Exception as error:
      raise ValueError(
        f"{folder} holds a model that is damaged or incomplete"
        f" ({type(error).__name__}); export it once more"
      ) from error
    agreement.check_model(folder, told, self._model)

  def ids_of(self, titles: Sequence[str]) -> np.ndarray:
    """Turns titles into what a model of titles takes.

    Args:
      titles: Texts. A word that the model does not know is one it knows as
        unknown.

    Returns:
      Ids of their words, [n, length] int32.

    Raises:
      ValueError: If the model takes no titles.
    """
    if self.vocabulary is None:
      raise ValueError(
        f"this model of {self.algorithm} has no vocabulary; it takes"
        f" {self.input_dtype.name} {list(self.input_shape)}, and no texts"
      )
    words = [text.words_of(title) for title in titles]
    return text.ids_of(words, self.vocabulary, *self.input_shape)

  def checked(self, x: Any) -> np.ndarray:
    """Checks examples and casts them to `input_dtype`, as training does.

    Args:
      x: The examples, an array or a tensor whose values are known.

    Returns:
      The examples, [n, ...].

    Raises:
      ValueError: If they are not what the model takes; the message is one line
        that says which example is not.
    """
    found = self._cast(x, (None, *self.input_shape), self.input_dtype, "x")
    if self.vocabulary is not None:
      text.check_ids(found, len(self.vocabulary), self.algorithm)
    return found

  def predict(self, x: Any) -> tf.Tensor:
    """Gives the server's logits, [n, num_classes] float32."""
    return self._function("predict")(self._examples(x))

  def predict_as(self, client: Any, x: Any) -> tf.Tensor:
    """Gives the logits of a client's own model.

    Args:
      client: One of `clients`; a number, or an int32 scalar tensor.
      x: The examples.

    Returns:
      [n, num_classes] float32.

    Raises:
      ValueError: If it is not among the clients; for a tensor in a
        `tf.function`, TensorFlow's `InvalidArgumentError` when it runs.
    """
    function = self._function("predict_as")
    if not tf.is_tensor(client) and client not in self.clients:
      raise ValueError(
        f"there is no client {client!r} in this model of {self.algorithm};"
        f" there are {', '.join(map(str, self.clients))}"
      )
    return function(tf.cast(client, tf.int32), self._examples(x))

  def guide(self, x: Any) -> Routing:
    """Tells which client is best equipped for each example."""
    found = self._function("guide")(self._examples(x))
    return Routing(found["routes"], found["probabilities"])

  def answer(self, x: Any) -> Answers:
    """Lets the client that the guide names predict each example."""
    found = self._function("answer")(self._examples(x))
    return Answers(found["classes"], found["routes"])

  def vote(self, x: Any) -> tf.Tensor:
    """Gives the class of most clients, [n] int32; the lowest if several."""
    return self._function("vote")(self._examples(x))

  def predict_for(self, request: Any, x: Any) -> tf.Tensor:
    """Gives the logits of the model that the server makes for a request.

    Args:
      request: What a client sends to get a model, such as the vector r of
        Fed-3DA: `request_shape` float32.
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
    """Checks and casts a value; the message says what the model takes."""
    if tf.is_tensor(value):
      value = np.asarray(value)
    try:
      return examples.checked_array(
        value, name, shape=shape, dtype=dtype.as_numpy_dtype
      )
    except ValueError as error:
      raise ValueError(f"{error}; {self._taken(shape, dtype)}") from error

  def _check_symbolic(self, value, shape, dtype, name) -> None:
    """Checks what a graph knows of a tensor."""
    if not value.shape.is_compatible_with(shape) or value.dtype != dtype:
      raise ValueError(
        f"{name} is {value.dtype.name} {value.shape};"
        f" {self._taken(shape, dtype)}"
      )

  def _taken(self, shape, dtype) -> str:
    wanted = ", ".join("n" if size is None else str(size) for size in shape)
    return f"this model of {self.algorithm} takes {dtype.name} ({wanted})"


def _is_symbolic(value: Any) -> bool:
  """Tells whether a value is a tensor of a graph, which has no numbers yet."""
  return tf.is_tensor(value) and not tf.executing_eagerly()


def load(folder: str | os.PathLike[str]) -> Predictor:
  """Loads what a run learned.

  Args:
    folder: The folder of a model, or one that has exactly one below it, such as
      the output folder of a binary with one run.

  Returns:
    The model.

  Raises:
    FileNotFoundError: If there is no such folder.
    ValueError: If there is no model or several, or if it is damaged; the
      message is one line.
  """
  folder = pathlib.Path(folder)
  if not folder.is_dir():
    raise FileNotFoundError(f"there is no folder {str(folder)!r}")
  if (folder / description.FILE).is_file():
    return Predictor(folder)
  found = sorted(
    path.parent
    for path in folder.rglob(description.FILE)
    # What was not written to its end has a name with a dot.
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
