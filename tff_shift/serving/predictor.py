"""Asks a model that `export` has written, with TensorFlow alone."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_shift.data import text
from tff_shift.serving import description

# What NumPy makes of Python's numbers, and what is meant.
_NARROWED = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}


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

  Its methods take examples `x`, [n, ...] of `input_shape` and `input_dtype`, as
  arrays or tensors, and give tensors; they work inside a `tf.function` as well.
  Each raises a ValueError where the model cannot do what it is asked for, or
  the examples are not what it takes.

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
    try:
      self._model = tf.saved_model.load(os.fspath(folder))
    # Which error depends on the place of the damage.
    except Exception as error:
      raise ValueError(
        f"{folder} holds a model that is damaged or incomplete"
        f" ({type(error).__name__}); export it once more"
      ) from error

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

  def predict(self, x: Any) -> tf.Tensor:
    """Gives the server's logits, [n, num_classes] float32."""
    # Keras models have a method `predict` of their own.
    return self._function("predict", "server_predict")(self._examples(x))

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
    request = self._checked(request, self.request_shape, tf.float32, "request")
    return function(request, self._examples(x))

  def _function(self, name: str, attribute: str | None = None) -> Any:
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
    return getattr(self._model, attribute or name)

  def _examples(self, x: Any) -> tf.Tensor:
    shape = (None, *self.input_shape)
    checked = self._checked(x, shape, self.input_dtype, "x")
    if self.vocabulary is not None and not tf.is_tensor(x):
      text.check_ids(np.asarray(x), len(self.vocabulary), self.algorithm)
    return checked

  def _checked(self, value, shape, dtype, name) -> tf.Tensor:
    """Returns a value as a tensor, if it has shape and type."""
    if not tf.is_tensor(value):
      value = np.asarray(value)
      if _NARROWED.get(value.dtype) == dtype.as_numpy_dtype:
        value = value.astype(dtype.as_numpy_dtype)
    found = tf.TensorShape(value.shape)
    if not found.is_compatible_with(shape) or value.dtype != dtype:
      wanted = ", ".join("n" if size is None else str(size) for size in shape)
      raise ValueError(
        f"{name} is {np.dtype(tf.as_dtype(value.dtype).as_numpy_dtype).name}"
        f" {found}; this model of {self.algorithm} takes {dtype.name}"
        f" ({wanted})"
      )
    return tf.convert_to_tensor(value)


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
