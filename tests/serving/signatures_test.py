"""The signatures of saved models, read without tff_shift, and over HTTP."""

import http.client
import json
import pathlib
import re
import select
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from werkzeug import serving
from werkzeug import test

import tff_shift
from examples import serve
from tests.fixtures import tables
from tests.fixtures import trees
from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import normal
from tff_shift.data import table
from tff_shift.serving import served

ROOT = pathlib.Path(__file__).parents[2]
X = normal(0, 12, 2)
CLASSES = np.array(["a", "b", "c"])
CLIENTS = np.array(["north", "south", "west"])


@pytest.fixture(scope="module")
def predictor(served_federation):
  """It is compared with NumPy in `predictor_test`."""
  return tff_shift.load(served_federation)


@pytest.fixture(scope="module")
def loaded(served_federation):
  return tf.saved_model.load(str(served_federation))


def called(loaded, signature):
  outputs = loaded.signatures[signature](x=tf.constant(X))
  return {name: value.numpy() for name, value in outputs.items()}


@pytest.mark.parametrize(
  "signature, client",
  [
    ("serving_default", None),
    ("client_north", 0),
    ("client_south", 1),
    ("client_west", 2),
  ],
)
def test_predictions_have_logits_classes_and_probabilities(
  loaded, predictor, signature, client
):
  logits = (
    predictor.predict(X) if client is None else predictor.predict_as(client, X)
  )
  classes = np.argmax(logits, axis=1)
  found = called(loaded, signature)
  names = found.pop("class_names").astype(str)
  np.testing.assert_array_equal(names, CLASSES[classes])
  probabilities = tf.nn.softmax(logits)
  expected = {
    "logits": logits,
    "classes": classes,
    "probabilities": probabilities,
  }
  trees.assert_close(found, expected, 1e-5, 1e-6)


def test_answers_and_votes_have_the_names_of_classes_and_clients(
  loaded, predictor
):
  classes, routes = predictor.answer(X)
  of_clients = {"routes": routes, "client_names": CLIENTS[routes]}
  votes = predictor.vote(X)
  for signature, expected in (
    (
      "answer",
      {"classes": classes, "class_names": CLASSES[classes], **of_clients},
    ),
    ("guide", predictor.guide(X)._asdict() | of_clients),
    ("vote", {"classes": votes, "class_names": CLASSES[votes]}),
  ):
    actual = {
      name: values.astype(str) if name.endswith("names") else values
      for name, values in called(loaded, signature).items()
    }
    trees.assert_equal(actual, expected)


@pytest.mark.slow
def test_without_a_server_model_the_default_answers(served_folder):
  folder = served_folder(left_out=["predict"])
  loaded = tf.saved_model.load(str(folder))
  assert set(called(loaded, "serving_default")) == set(called(loaded, "answer"))


@pytest.fixture(scope="module")
def with_fields(served_folder):
  schema = table.Schema(features=("dose (mg)", "age"))
  return served_folder(schema=schema, left_out=["predict_for"])


@pytest.mark.parametrize(
  "named, signature",
  [
    ("named", "serving_default"),
    ("named_client_west", "client_west"),
    ("named_guide", "guide"),
    ("named_answer", "answer"),
    ("named_vote", "vote"),
  ],
)
def test_named_signatures_take_a_field_for_each_feature(
  with_fields, named, signature
):
  loaded = tf.saved_model.load(str(with_fields))
  dose, age = map(tf.constant, X.T)
  found = loaded.signatures[named](dose__mg_=dose, age=age)
  wanted = loaded.signatures[signature](x=tf.constant(X))
  trees.assert_equal(found, wanted)


@pytest.mark.parametrize(
  "feature, field",
  tables.cases("""
"age"
    age
"v[0]"
    v_0_
"Größe"
    Gr__e
"2nd dose"
    f_2nd_dose
"class"
    f_class
"self"
    f_self
"_x"
    f__x
"""),
)
def test_fields_are_names_of_python(feature, field):
  assert served.field(feature) == field


@pytest.mark.slow
def test_names_that_become_equal_have_no_fields(served_folder):
  folder = served_folder(schema=table.Schema(features=("a b", "a-b")))
  assert not any(
    name.startswith("named")
    for name in tf.saved_model.load(str(folder)).signatures
  )


class TestService:
  @pytest.fixture(scope="class")
  def post(self, served_federation):
    client = test.Client(serve.Service(served_federation, "federation"))

    def post(body, name="federation"):
      if not isinstance(body, str):
        body = json.dumps(body)
      response = client.post(f"/v1/models/{name}:predict", data=body)
      return response.status_code, json.loads(response.text)

    post.client = client
    return post

  def test_an_answer_names_client_and_class(self, post, predictor):
    status, found = post({"signature_name": "answer", "instances": X.tolist()})
    assert status == 200
    classes, routes = (
      values.numpy().tolist() for values in predictor.answer(X)
    )
    assert found["predictions"] == [
      {
        "class_names": CLASSES[c],
        "classes": c,
        "client_names": CLIENTS[r],
        "routes": r,
      }
      for c, r in zip(classes, routes, strict=True)
    ]

  def test_the_signatures_are_described(self, post):
    found = json.loads(post.client.get("/v1/models/federation").text)
    assert found["signatures"]["guide"]["inputs"] == {
      "x": {"shape": [None, 2], "dtype": "float32"}
    }
    assert set(found["signatures"]["guide"]["outputs"]) == {
      *("routes", "probabilities", "client_names")
    }

  def test_named_fields(self, with_fields, predictor):
    client = test.Client(serve.Service(with_fields))

    def post(*instances):
      body = {"signature_name": "named", "instances": instances}
      response = client.post("/v1/models/model:predict", data=json.dumps(body))
      return response.status_code, json.loads(response.text)

    status, found = post(
      *({"age": age, "dose__mg_": dose} for dose, age in X[:2].tolist())
    )
    assert status == 200
    assert_close(
      [each["logits"] for each in found["predictions"]],
      predictor.predict(X[:2]),
      1e-5,
    )
    for wrong in ([1.0, 2.0], {"age": 1.0}, {"age": 1, "dose__mg_": 2, "x": 3}):
      assert post(wrong) == (
        400,
        {"error": "instances must be objects with the fields age, dose__mg_"},
      )

  @pytest.mark.parametrize(
    "body, message",
    [
      *tables.rows("""
{
    the body must be JSON
{}
    the body must be JSON
[1]
    the body must be JSON
{"instances": [[1.0]]}
    examples of [2] of float32, at least one
{"instances": []}
    examples of [2] of float32, at least one
{"instances": [[1.0, "a"]]}
    instances must be numbers
{"instances": [[1.0], [1.0, 2.0]]}
    instances must be numbers
{"instances": [[1.0, NaN]]}
    must be finite numbers of float32
{"instances": [[1.0, 1e39]]}
    must be finite numbers of float32
{"instances": [[1.0, 2.0]], "signature_name": "anwser"}
    signature_name 'anwser' is unknown; the model has answer, client_no
{"instances": [["1.0", "2.0"]]}
    instances must be numbers
{"instances": {}}
    instances must be numbers
{"instances": [[1.0, 2.0]], "signature_name": []}
    signature_name [] is unknown
{"instances": [[1.0, 2.0]], "signature_name": {}}
    signature_name {} is unknown
"""),
      (f'{{"instances": [[1.0, 1{"0" * 400}]]}}', ["instances must be numb"]),
      ('{"instances": ' + "[" * 100_000, ["the body must be JSON"]),
      ('{"instances": ' + "[" * 50 + "]" * 50 + "}", ["instances must be"]),
    ],
  )
  def test_bad_requests_are_answered_in_one_line(self, post, body, message):
    status, found = post(body)
    assert status == 400
    assert message[0] in found["error"] and "\n" not in found["error"]

  def test_large_bodies_are_refused(self, post):
    status, found = post(" " * (2**24 + 1))
    assert status == 413
    assert "capacity limit" in found["error"]

  def test_other_models_and_methods_are_refused(self, post):
    status, found = post({"instances": [[1.0, 2.0]]}, name="other")
    assert (status, found["error"]) == (404, "there is no model other")
    assert post.client.post("/v1/models/federation").status_code == 405


def test_slow_requests_end(served_federation, monkeypatch):
  monkeypatch.setattr(serve.Handler, "timeout", 0.5)
  server = serving.make_server(
    "127.0.0.1",
    0,
    serve.Service(served_federation),
    threaded=True,
    request_handler=serve.Handler,
  )
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  try:
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
      client.settimeout(20)
      client.sendall(
        b"POST /v1/models/model:predict HTTP/1.1\r\nContent-Length: 99\r\n\r\n"
      )
      start = time.monotonic()
      # Each byte comes in time, and all of them would take 30 seconds.
      while not select.select([client], [], [], 0.3)[0]:
        client.sendall(b" ")
        assert time.monotonic() < start + 10
      assert b" 408 " in client.recv(1000)
  finally:
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_the_example_serves_a_folder_on_loopback(served_federation, predictor):
  with subprocess.Popen(
    [
      *(sys.executable, "-m", "examples.serve", "--port=0"),
      f"--model={served_federation}",
    ],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
  ) as server:
    try:
      port = int(re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline())[1])
      connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
      connection.request(
        "POST",
        "/v1/models/model:predict",
        json.dumps({"instances": X.tolist()}),
      )
      found = json.loads(connection.getresponse().read())["predictions"]
      connection.close()
    finally:
      server.terminate()
      server.wait(60)
  # The default is the server's model.
  assert_close([each["logits"] for each in found], predictor.predict(X), 1e-5)
