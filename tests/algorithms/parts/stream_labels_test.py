"""What clients learn from in place of a labelled stream."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tff_shift.algorithms.parts import adaptation
from tff_shift.algorithms.parts import stream_labels
from tff_shift.testing import clients
from tff_shift.testing import fixtures

model = fixtures.model
make_adapting_client = clients.make_adapting_client


@pytest.fixture(scope="module")
def client(make_adapting_client):
  return make_adapting_client(0, 7, 5)


def lesson_of(model, run_in_graph, client, labels, predicted):
  """Runs `lesson`; its predictions of the stream are given."""
  hparams = stream_labels.StreamLabelsHParams(stream_labels=labels)
  return run_in_graph(
    lambda data, logits: stream_labels.lesson(
      model, hparams, None, data, lambda x: logits
    ),
    client,
    predicted,
  )


PREDICTED = np.eye(3, dtype=np.float32)[[2, 0, 2, 2, 0]]


@pytest.mark.slow
def test_lesson_risk_weights_labelled_examples_by_the_estimate(
  model, client, run_in_graph
):
  found = lesson_of(model, run_in_graph, client, "risk", PREDICTED)

  def expect(data):
    hparams = stream_labels.StreamLabelsHParams()
    classes = adaptation.estimate_classes(model, hparams, None, data)
    return classes, adaptation.class_weights(classes, data.y)

  classes, weights = run_in_graph(expect, client)
  assert_array_equal(found.examples.x, client.x)
  assert_array_equal(found.examples.y, client.y)
  assert_array_equal(found.classes, classes)
  assert_array_equal(found.class_weights, weights)


def test_lesson_pseudo_labels_are_the_predicted_classes(
  model, client, run_in_graph
):
  found = lesson_of(model, run_in_graph, client, "pseudo", PREDICTED)
  assert_array_equal(found.examples.x, client.stream_x)
  assert_array_equal(found.examples.y, [2, 0, 2, 2, 0])
  assert_array_equal(found.examples.domain_sizes, [5])
  np.testing.assert_allclose(found.classes, [0.4, 0, 0.6], rtol=1e-6)
  # Every example counts one.
  assert_array_equal(found.class_weights, np.ones(3))
