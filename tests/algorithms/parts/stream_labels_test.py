"""What clients learn from in place of a labelled stream."""

import numpy as np
from numpy.testing import assert_array_equal

from tff_shift.algorithms.parts import stream_labels

STREAM = 7, 5


def test_pseudo_labels_are_the_predicted_classes(model, client, run_in_graph):
  hparams = stream_labels.StreamLabelsHParams(stream_labels="pseudo")
  predicted = [2, 0, 2, 2, 0]
  lesson = run_in_graph(
    lambda data, logits: stream_labels.lesson(
      model, hparams, None, data, lambda x: logits
    ),
    client,
    np.eye(3, dtype=np.float32)[predicted],
  )
  assert_array_equal(lesson.examples.x, client.stream_x)
  assert_array_equal(lesson.examples.y, predicted)
  assert_array_equal(lesson.examples.domain_sizes, [5])
  np.testing.assert_allclose(lesson.classes, [0.4, 0, 0.6], rtol=1e-6)
  # Every example counts one.
  assert_array_equal(lesson.class_weights, np.ones(3))
