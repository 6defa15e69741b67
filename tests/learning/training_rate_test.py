"""Local training without a learning rate."""

import pytest
import tensorflow as tf

from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training


def test_it_is_refused_by_name():
  with pytest.raises(TypeError) as error:
    local_training.train(
      lambda weights, step, carry: (tf.reduce_sum(weights), carry),
      tf.constant([1.0]),
      1,
      hyperparameters.LocalWorkHParams(),
      seed=None,
    )
  assert "train needs a learning_rate" in str(error.value)
  assert "LocalHParams, got LocalWorkHParams" in str(error.value)
