"""Serves a saved model over HTTP, in the REST format of TensorFlow Serving.

    python -m examples.serve --model=runs/demo-guidance/model/... --port=8501

    curl localhost:8501/v1/models/model
    curl localhost:8501/v1/models/model:predict -d '{"instances": [[0.1, 0.2]]}'

The server needs the folder of the model alone, neither data nor tff_shift's
algorithms. A request may name a signature (`"signature_name": "answer"`), see
tff_shift/serving/served.py. For `answer` of a guided federation, such as
FedDRM's, the response to a query has the client's name and its answer.

A saved model is a program: serve models of sources that you trust. A body has
at most 16 MiB, and a request arrives within 30 seconds.

It is a small example on werkzeug, for one machine. TensorFlow Serving itself
serves the same folder, below a folder with the version's number:

    mkdir -p models/federation && cp -r <folder> models/federation/1
"""

import json
import os
import pathlib
import socket
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags
from werkzeug import exceptions
from werkzeug import routing
from werkzeug import serving
from werkzeug import wrappers

FLAGS = flags.FLAGS

_ROUTES = routing.Map(
  [
    routing.Rule("/v1/models/<name>", endpoint="describe", methods=["GET"]),
    routing.Rule(
      "/v1/models/<name>:predict", endpoint="predict", methods=["POST"]
    ),
  ]
)
_MAX_BODY_BYTES = 2**24
_MAX_SECONDS = 30
_DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


class _Request(wrappers.Request):
  max_content_length = _MAX_BODY_BYTES


class Handler(serving.WSGIRequestHandler):
  """Handles a request, which must arrive in time."""

  # Of a single read, and thus of a client that sends nothing.
  timeout = _MAX_SECONDS

  def handle(self) -> None:
    """Ends reading after `timeout`, also from a client that sends slowly."""
    timer = threading.Timer(
      self.timeout, self.connection.shutdown, [socket.SHUT_RD]
    )
    timer.start()
    try:
      super().handle()
    finally:
      timer.cancel()


class Service:
  """A WSGI application with one model."""

  def __init__(self, folder: str | os.PathLike[str], name: str = "model"):
    """Loads the model.

    Args:
      folder: The folder of a saved model.
      name: Its name in addresses.
    """
    # Kept: its signatures refer to its variables.
    self._model = tf.saved_model.load(os.fspath(folder))
    self._name = name

  def __call__(self, environ: Mapping[str, Any], start_response: Any) -> Any:
    """Answers a request."""
    request = _Request(environ)
    try:
      endpoint, values = _ROUTES.bind_to_environ(environ).match()
      if values["name"] != self._name:
        raise exceptions.NotFound(f"there is no model {values['name']}")
      answer = getattr(self, f"_{endpoint}")(request)
      status = 200
    except exceptions.HTTPException as error:
      answer, status = {"error": error.description}, error.code
    return wrappers.Response(
      json.dumps(answer), status, mimetype="application/json"
    )(environ, start_response)

  def _describe(self, request: wrappers.Request) -> dict[str, Any]:
    """Returns the shapes and types of each signature."""
    del request
    return {
      "signatures": {
        name: {
          use: {key: self._described(spec) for key, spec in specs.items()}
          for use, specs in (
            ("inputs", self._inputs(function)),
            ("outputs", function.structured_outputs),
          )
        }
        for name, function in self._model.signatures.items()
      }
    }

  def _predict(self, request: wrappers.Request) -> dict[str, Any]:
    """Returns the outputs of a signature for each example."""
    try:
      content = json.loads(request.get_data())
      instances = content["instances"]
      name = content.get("signature_name", _DEFAULT)
    except exceptions.ClientDisconnected:
      raise exceptions.RequestTimeout("the body is incomplete") from None
    except (ValueError, KeyError, TypeError, RecursionError):
      raise exceptions.BadRequest(
        'the body must be JSON: {"instances": [[...], ...]}'
      ) from None
    if not isinstance(name, str) or name not in self._model.signatures:
      raise exceptions.BadRequest(
        f"signature_name {name!r} is unknown; the model has"
        f" {', '.join(sorted(self._model.signatures))}"
      )
    function = self._model.signatures[name]
    specs = self._inputs(function)
    inputs = {
      name: self._examples(values, specs[name])
      for name, values in self._by_input(instances, list(specs)).items()
    }
    outputs = function(**inputs)
    return {
      "predictions": [
        {
          output: _to_json(value[row])
          for output, value in sorted(outputs.items())
        }
        for row in range(len(instances))
      ]
    }

  def _by_input(self, instances: Any, names: list[str]) -> dict[str, Any]:
    """Returns the values of each input: of x, or of named fields."""
    if names == ["x"]:
      return {"x": instances}
    for example in instances if isinstance(instances, list) else [instances]:
      if not isinstance(example, dict) or set(example) != set(names):
        raise exceptions.BadRequest(
          f"instances must be objects with the fields"
          f" {', '.join(sorted(names))}"
        )
    return {name: [example[name] for example in instances] for name in names}

  def _examples(self, instances: Any, spec: tf.TensorSpec) -> tf.Tensor:
    """Returns the examples of a request."""
    wanted = f"{list(spec.shape[1:])} of {spec.dtype.name}"
    try:
      x = np.asarray(instances)
      if x.dtype.kind in "US":
        raise TypeError("texts are no numbers")
      x = x.astype(np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError):
      raise exceptions.BadRequest(
        f"instances must be numbers, each {wanted}"
      ) from None
    if x.ndim < 1 or not len(x) or x.shape[1:] != tuple(spec.shape[1:]):
      raise exceptions.BadRequest(
        f"instances must be examples of {wanted}, at least one, got"
        f" {list(x.shape)}"
      )
    with np.errstate(over="ignore", invalid="ignore"):
      cast = x.astype(spec.dtype.as_numpy_dtype)
    is_exact = not spec.dtype.is_integer or (cast == x).all()
    if not (np.isfinite(x).all() and np.isfinite(cast).all() and is_exact):
      raise exceptions.BadRequest(
        f"instances must be finite numbers of {spec.dtype.name}"
      )
    return tf.constant(cast)

  @staticmethod
  def _inputs(function: Any) -> dict[str, tf.TensorSpec]:
    return function.structured_input_signature[1]

  @staticmethod
  def _described(spec: tf.TensorSpec) -> dict[str, Any]:
    return {"shape": spec.shape.as_list(), "dtype": spec.dtype.name}


def _to_json(value: tf.Tensor) -> Any:
  """Returns a tensor as JSON; texts are UTF-8."""
  array = value.numpy()
  return array.decode() if isinstance(array, bytes) else array.tolist()


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_string("model", None, "Folder of a saved model.")
  flags.DEFINE_string("name", "model", "Name of the model in addresses.")
  flags.DEFINE_string("host", "127.0.0.1", "Address to listen on.")
  flags.DEFINE_integer(
    "port",
    8501,
    "Port to listen on; 0: any.",
    lower_bound=0,
    upper_bound=2**16 - 1,
  )


def main(argv: list[str]) -> None:
  """Serves until Ctrl-C."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
  if not FLAGS.model or not pathlib.Path(FLAGS.model).is_dir():
    raise app.UsageError("--model must be the folder of a saved model")
  server = serving.make_server(
    FLAGS.host,
    FLAGS.port,
    Service(FLAGS.model, FLAGS.name),
    threaded=True,
    request_handler=Handler,
  )
  print(
    f"http://{FLAGS.host}:{server.server_port}/v1/models/{FLAGS.name}",
    flush=True,
  )
  server.serve_forever()


if __name__ == "__main__":
  define_flags()
  app.run(main)
