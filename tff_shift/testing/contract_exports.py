"""An exported model predicts like the algorithm itself."""

import json
import types

import numpy as np
import pytest
import tensorflow as tf

import tff_shift
from tff_shift import algorithms
from tff_shift.data import table
from tff_shift.models import split_model
from tff_shift.serving import export
from tff_shift.simulation.engine import rounds

# Included in every example of the clients.
MARKER = np.float32(7.6543211e-5)
X = np.random.default_rng(1).normal(size=(9, 5)).astype(np.float32)


def with_marker(client):
  changes = {"x": np.array(client.x)}
  if "stream_x" in client._fields:
    changes["stream_x"] = np.array(client.stream_x)
  for values in changes.values():
    values[:, 0] = MARKER
  return client._replace(**changes)


@pytest.fixture(scope="module")
def exported(built, client_data, tmp_path_factory):
  """The first states of four clients, exported to a folder and loaded."""
  data = [
    with_marker(client_data.make(built.algorithm, i, more=i)) for i in range(4)
  ]
  running = rounds.Rounds(built.algorithm, data, run_seed=3)
  folder = tmp_path_factory.mktemp("models") / built.name
  export.export(
    built.algorithm,
    running.server_state,
    running.states,
    running.data,
    folder,
    clients=range(4),
    schema=table.Schema(classes=("a", "b", "c")),
  )
  return types.SimpleNamespace(
    model=tff_shift.load(folder), folder=folder, running=running, data=data
  )


def to_predict(data):
  """Returns `X` as the domain after those of the clients."""
  num_domains = len(getattr(data, "domain_sizes", ()))
  sizes = np.zeros(num_domains + 1, np.int32)
  sizes[-1] = len(X)
  return sizes


@pytest.mark.slow
class TestExports:
  def test_clients_predict_the_same(
    self, built, exported, make_client, run_for_each, run_in_graph
  ):
    functions, running = built.functions, exported.running
    state = running.server_state
    examples = make_client(0, [9])._replace(
      x=X, domain_sizes=to_predict(exported.data[0])
    )

    def predict(weights, client_state, data, examples):
      if functions.prepare_client is not None:
        client_state = functions.prepare_client(
          weights, client_state, data, tf.constant(0)
        )
      return functions.predict_as_client(weights, client_state, data, examples)

    logits = run_for_each(
      predict,
      [
        (state.weights, client_state, data, examples)
        for client_state, data in zip(
          running.client_states, exported.data, strict=True
        )
      ],
    )
    classes = []
    for client, expected in enumerate(logits):
      found = exported.model.predict_as(client, X)
      np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
      classes.append(found.numpy().argmax(axis=1))
      np.testing.assert_array_equal(classes[-1], expected.argmax(axis=1))
    votes = [np.bincount(each, minlength=3) for each in np.transpose(classes)]
    np.testing.assert_array_equal(
      exported.model.vote(X), np.argmax(votes, axis=1)
    )

  def test_server_predicts_the_same(
    self, built, exported, make_client, run_in_graph, run_for_each
  ):
    functions = built.functions
    weights = exported.running.server_state.weights
    if functions.predict_as_server is None:
      assert "predict" not in exported.model.functions
      with pytest.raises(ValueError, match="has no predict; it has"):
        exported.model.predict(X)
      return
    summaries = run_for_each(
      functions.summarize_client, [(weights, each) for each in exported.data]
    )
    expected = run_in_graph(
      functions.predict_as_server,
      weights,
      tf.nest.map_structure(lambda *each: sum(each), *summaries),
      make_client(0, [9])._replace(
        x=X, domain_sizes=to_predict(exported.data[0])
      ),
    )
    np.testing.assert_allclose(
      exported.model.predict(X), expected, rtol=1e-5, atol=1e-6
    )

  def test_request_is_answered_with_a_model(
    self, built, exported, make_client, run_in_graph
  ):
    functions, weights = built.functions, exported.running.server_state.weights
    if functions.answer_request is None:
      assert "predict_for" not in exported.model.functions
      return
    (size,) = functions.request_type.shape
    request = np.linspace(-1, 1, size, dtype=np.float32)
    expected = run_in_graph(
      lambda weights, request, data, examples: functions.predict_as_client(
        weights, functions.answer_request(weights, request), data, examples
      ),
      weights,
      request,
      exported.data[0],
      make_client(0, [9])._replace(x=X),
    )
    np.testing.assert_allclose(
      exported.model.predict_for(request, X), expected, rtol=1e-5, atol=1e-6
    )

  def test_no_example_is_in_the_files(self, exported):
    for path in exported.folder.rglob("*"):
      if path.is_file() and path.suffix != ".npz":
        assert MARKER.tobytes() not in path.read_bytes(), path
    # NumPy may compress the files of arrays.
    with np.load(exported.folder / "weights.npz") as arrays:
      for name, values in arrays.items():
        assert MARKER.tobytes() not in values.tobytes(), name

  def test_weights_of_the_model_can_be_started_from(
    self, built, exported, model
  ):
    found = exported.running.server_state.weights
    with np.load(exported.folder / "weights.npz") as arrays:
      assert {
        name.split("/")[1] for name in arrays if "clients/" in name
      } <= set("0123")
    shapes = [*model.backbone.shapes, *model.head.shapes]
    if not isinstance(found, split_model.SplitWeights) or shapes != [
      tuple(each.shape) for each in tf.nest.flatten(found)
    ]:
      return  # Not the weights of the model.
    loaded = split_model.load_weights(model, exported.folder / "weights.npz")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      values = session.run(loaded.initial_weights(tf.constant([0, 0])))
    for one, other in zip(
      tf.nest.flatten(values), tf.nest.flatten(found), strict=True
    ):
      np.testing.assert_array_equal(one, other)

  def test_description_says_what_it_is(self, built, exported):
    described = json.loads((exported.folder / "model.json").read_text())
    assert described["algorithm"] == built.name == exported.model.algorithm
    hparams = algorithms.get(built.name).HParams(**described["hparams"])
    assert hparams == built.algorithm.hparams
    assert described["clients"] == [0, 1, 2, 3]
    assert described["schema"] == {"classes": ["a", "b", "c"]}
    assert (
      described["input_shape"] == [5] and described["input_dtype"] == "float32"
    )
    assert set(described["versions"]) == {"tensorflow", "tff_shift"}
