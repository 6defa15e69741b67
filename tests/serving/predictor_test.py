"""Asking a federation in a folder, beside its matrices."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pandas
import pytest
import tensorflow as tf

import tff_shift
from tests.fixtures import trees
from tests.fixtures.arrays import assert_close
from tests.fixtures.arrays import assert_equal
from tests.fixtures.arrays import normal
from tests.fixtures.refusals import refused
from tff_shift.data import table as table_lib
from tff_shift.data.texts import text
from tff_shift.serving import description

ROOT = pathlib.Path(__file__).parents[2]
X = normal(0, 12, 2)
METHODS = ("predict", "predict_as", "guide", "answer", "vote", "predict_for")


@pytest.fixture(scope="module")
def predictor(served_federation):
  return tff_shift.load(served_federation)


@pytest.fixture(scope="module")
def values(served_folder):
  return served_folder.values


@pytest.fixture(scope="module")
def client_logits(values):
  """Of each client, [3, 12, 3]."""
  return np.array([X @ (values.shared + each) for each in values.personal])


def softmax(logits):
  exponentials = np.exp(logits)
  return exponentials / exponentials.sum(axis=1, keepdims=True)


class TestMethods:
  def test_server(self, predictor, values):
    assert_close(predictor.predict(X), X @ values.shared, 1e-6)

  @pytest.mark.parametrize("client", range(3))
  def test_client(self, predictor, client_logits, client):
    assert_close(
      predictor.predict_as(client, X), client_logits[client], 1e-5, 1e-6
    )

  def test_guide_is_corrected_for_the_shares(self, predictor, values):
    routes, probabilities = predictor.guide(X)
    # The third client has half of all, the others a quarter each.
    expected = softmax(X @ values.guide - np.log([0.25, 0.25, 0.5]))
    assert_close(probabilities, expected, 1e-5)
    assert_equal(routes, expected.argmax(axis=1))
    # Client 2 has the logits of client 1 and twice its share.
    assert set(routes.numpy()) == {0, 1}

  def test_answers_are_those_of_the_clients_that_are_named(
    self, predictor, client_logits
  ):
    classes, routes = predictor.answer(X)
    assert_equal(routes, predictor.guide(X).routes)
    of_all = client_logits.argmax(axis=2)
    assert (of_all[0] != of_all[1]).any()
    assert_equal(classes, of_all[routes, np.arange(len(X))])

  def test_vote_is_the_majority(self, predictor, client_logits):
    votes = [np.bincount(v, minlength=3) for v in client_logits.argmax(2).T]
    assert_equal(predictor.vote(X), np.argmax(votes, axis=1))

  def test_request(self, predictor, values):
    request = np.array([1, 2, 3], np.float32)
    assert_close(
      predictor.predict_for(request, X), X @ values.shared + request, 1e-6, 1e-6
    )

  def test_no_examples(self, predictor):
    nothing = X[:0]
    assert predictor.predict_as(1, nothing).shape == (0, 3)
    assert predictor.vote(nothing).shape == (0,)
    assert predictor.answer(nothing).classes.shape == (0,)

  def test_answer_that_is_no_number_is_none(self, predictor):
    # Finite, and too large for the product with weights.
    classes, _ = predictor.answer(np.full((2, 2), 3e38, np.float32))
    assert_equal(classes, [-1, -1])

  def test_tensors_and_lists_and_other_numbers(self, predictor):
    expected = predictor.predict(X)
    for x in (tf.constant(X), tf.constant(X, tf.float64), X.tolist()):
      assert_equal(predictor.predict(x), expected)

  def test_inside_a_function_of_tensorflow(self, predictor):
    @tf.function
    def both(client, x):
      return predictor.predict_as(client, x), predictor.answer(x).classes

    logits, classes = both(tf.constant(2), tf.constant(X))
    assert_equal(logits, predictor.predict_as(2, X))
    assert_equal(classes, predictor.answer(X).classes)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no client"):
      both(tf.constant(3), tf.constant(X))


class TestRefusals:
  @pytest.mark.parametrize(
    "x",
    [
      X[0],
      X[:, :1],
      X.astype(np.int32),
      X.astype(str),
      tf.constant(X.astype(np.int32)),
    ],
  )
  def test_wrong_examples_are_told_in_a_line(self, predictor, x):
    with refused(r"^x: .* takes float32 \(n, 2\)$"):
      predictor.predict(x)

  @pytest.mark.parametrize(
    "at, message",
    [
      (np.nan, "got nan in column 1 of example 3"),
      (1e39, "got 1e+39 in column 1 of example 3"),
      (np.ma.masked, "1 of 24 values are masked, the first at [3, 1]"),
    ],
  )
  def test_values_that_training_refuses(self, predictor, at, message):
    x = np.ma.array(X, np.float64)
    x[3, 1] = at
    if at is not np.ma.masked:
      x = x.data
    first = {"predict_as": [0], "predict_for": [np.zeros(3)]}
    for method in METHODS:
      with refused(re.escape(message)):
        getattr(predictor, method)(*first.get(method, []), x)

  def test_type_of_a_tensor_whose_values_nobody_knows(self, predictor):
    @tf.function
    def predict(x):
      return predictor.predict(x)

    # TensorFlow tells where, in lines.
    with pytest.raises(ValueError, match=r"x is float64 \(12, 2\); .* float32"):
      predict(tf.constant(X, tf.float64))

  def test_wrong_request(self, predictor):
    for request in (np.zeros(4, np.float32), np.zeros(3, int), [0, 0, np.inf]):
      with refused(r"^request: .*float32 \(3\)$"):
        predictor.predict_for(request, X)

  @pytest.mark.parametrize("client", [3, -1, "a"])
  def test_client_that_is_not_there(self, predictor, client):
    with refused(r"there are 0, 1, 2$"):
      predictor.predict_as(client, X)

  def test_names_of_clients_and_columns_decide(self, served_folder, predictor):
    """The clients are hospitals 2, 3 and 1."""
    folder = served_folder(
      schema=table_lib.Schema(
        classes=("a", "b", "c"),
        clients=("2", "3", "1"),
        features=("dose", "age"),
      )
    )
    named = tff_shift.load(folder)
    frame = pandas.DataFrame({"age": X[:, 1], "dose": X[:, 0]})
    for client in (1, "1"):
      for x in (X, frame):
        assert_equal(named.predict_as(client, x), predictor.predict_as(2, X))
    for method in ("predict", "vote", "guide", "answer"):
      trees.assert_equal(
        getattr(named, method)(frame), getattr(predictor, method)(X)
      )
    assert_equal(
      named.predict_for(np.ones(3), frame), predictor.predict_for(np.ones(3), X)
    )
    with refused(r"no client 0 .* there are 2, 3, 1$"):
      named.predict_as(0, X)

  def test_what_a_model_lacks_is_told_with_what_it_has(
    self, served_folder, refusal
  ):
    folder = served_folder(
      left_out=("predict", "predict_as", "predict_for"), clients=[]
    )
    guide_only = tff_shift.load(folder)
    assert guide_only.functions == ("guide",)
    assert guide_only.guide(X).routes.shape == (12,)
    arguments = {"predict_as": (0, X), "predict_for": (np.zeros(3), X)}
    for name in set(METHODS) - {"guide"}:
      line = refusal(getattr(guide_only, name), *arguments.get(name, (X,)))
      assert f"has no {name}; it has guide" in line
      assert ("--save_clients" in line) == (
        name in ("predict_as", "answer", "vote")
      )


class TestTitles:
  @pytest.mark.slow
  def test_words_become_what_the_model_takes(self, served_folder):
    folder = served_folder(input_shape=[4], input_dtype="int32")
    description.write_vocabulary(folder, (*text.RESERVED, "it's", "new"))
    model = tff_shift.load(folder)
    assert model.vocabulary[2:] == ("it's", "new")
    ids = model.ids_of(["NEW? It's old", "new " * 9, ""])
    assert ids.dtype == np.int32
    assert ids.tolist() == [[3, 2, 1, 0], [3] * 4, [0] * 4]
    with refused(r"words must lie in 0\.\.3, got 4\.\.4"):
      model.predict(np.full([1, 4], 4, np.int32))
    with refused(r"takes int32 \(n, 4\)"):
      model.predict(["new"])

  def test_model_of_numbers_takes_no_texts(self, predictor):
    assert predictor.vocabulary is None
    with refused(r"has no vocabulary; it takes float32"):
      predictor.ids_of(["new"])


class TestFolders:
  def test_folder_of_a_run_with_one_model(self, served_federation, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(served_federation, run / "model" / "a" / "seed_0")
    # What a run has left that was killed.
    shutil.copytree(served_federation, run / "model" / "a" / ".seed_1.tmp")
    assert tff_shift.load(run).predict(X).shape == (12, 3)
    shutil.copytree(served_federation, run / "model" / "b" / "seed_0")
    with refused(r"2 models.*a/seed_0.*b/seed_0"):
      tff_shift.load(str(run))

  def test_no_model(self, tmp_path):
    with refused("holds no model"):
      tff_shift.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
      tff_shift.load(tmp_path / "nothing")

  @pytest.mark.parametrize(
    "change, message",
    [
      (
        lambda told: told | {"format": 1},
        "model.json: it has format 1, and this version of tff_shift reads"
        " format 3; export the model once",
      ),
      (lambda told: [], "model.json: Expected `object`, got `array`"),
      (lambda told: told | {"functions": []}, "weights but no model"),
    ],
  )
  def test_description_that_is_of_no_use(
    self, served_federation, tmp_path, change, message
  ):
    told = json.loads((served_federation / description.FILE).read_text())
    (tmp_path / description.FILE).write_text(json.dumps(change(told)))
    with refused(message):
      tff_shift.load(tmp_path)

  def test_model_that_is_damaged(self, served_federation, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(served_federation, folder)
    (folder / "saved_model.pb").write_bytes(b"nothing")
    with refused("damaged or incomplete"):
      tff_shift.load(folder)


def test_keras_loads_the_servers_model(served_federation, predictor):
  model = tf.keras.models.load_model(served_federation, compile=False)
  assert_equal(model(X), predictor.predict(X))
  assert_equal(model.predict(X, verbose=0), predictor.predict(X))
  assert_equal(model.predict_as(1, X), predictor.predict_as(1, X))


@pytest.mark.slow
def test_many_models_are_saved_without_a_warning(served_folder, caplog):
  # Five first calls that trace are one too many for TensorFlow.
  for _ in range(6):
    served_folder(left_out=("predict_as", "guide", "predict_for"))
  assert not [each for each in caplog.records if "retracing" in each.message]


@pytest.mark.long
def test_a_process_without_tff_predicts_the_same(
  served_federation, predictor, tmp_path
):
  np.save(tmp_path / "x.npy", X)
  program = (
    "import sys, numpy as np, tff_shift;"
    "assert 'tensorflow' not in sys.modules;"
    "folder, x = sys.argv[1], np.load(sys.argv[2] + '/x.npy');"
    "model = tff_shift.load(folder);"
    "np.savez(sys.argv[2] + '/found', *model.answer(x), model.predict(x));"
    "assert 'tensorflow' in sys.modules;"
    "assert not [m for m in sys.modules if 'tensorflow_federated' in m]"
  )
  subprocess.run(
    [sys.executable, "-c", program, served_federation, tmp_path],
    cwd=ROOT,
    check=True,
  )
  with np.load(tmp_path / "found.npz") as found:
    trees.assert_equal(
      list(found.values()), [*predictor.answer(X), predictor.predict(X)]
    )
