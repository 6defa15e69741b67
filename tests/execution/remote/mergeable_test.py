"""Tests of how computations are taken apart."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift.execution import compilation
from tff_shift.execution.remote import mergeable


def _last(_, element):
  return tf.cast(element, tf.float32)


class TestPlan:
  def num_maps(self, computation, member_type):
    """Counts the calls that map something to values of a type at clients."""
    mapped_type = tff.FederatedType(member_type, tff.CLIENTS)
    return sum(
      isinstance(part, tff.framework.Call)
      and part.type_signature.is_equivalent_to(mapped_type)
      for part in compilation.walk(
        tff.framework.to_call_dominant(computation.to_building_block())
      )
    )

  def test_clients_work_once(self, count, count_up_to):
    plan = mergeable.Plan(count)
    work = count_up_to.type_signature.result
    form = tff.backends.native.compile_to_mergeable_comp_form(count)
    # As TFF has it, once for the mean and again for what clients keep.
    assert self.num_maps(form.up_to_merge, work) == 1
    assert self.num_maps(form.after_merge, work) == 1
    assert self.num_maps(plan.start, work) == 1
    assert self.num_maps(plan.finish, work) == 0
    assert [self.num_maps(half, work) for half in plan.halves] == [1, 0]

  @pytest.mark.slow
  def test_who_needs_clients(self, count, subtract, center):
    assert mergeable.Plan(subtract).whole is not None
    plan = mergeable.Plan(center)
    assert (plan.early, plan.late) == ([], [(0,), (1,)])
    plan = mergeable.Plan(count)
    assert (plan.early, plan.late) == ([(0,)], [(1,)])

  @pytest.mark.slow
  @pytest.mark.parametrize(
    ("draw", "is_whole"),
    [
      (lambda x: x + tf.random.uniform([]), True),
      # Its value depends on earlier draws.
      (lambda x: x + tf.random.normal([], seed=1), True),
      (lambda x: tf.function(lambda y: y + tf.random.uniform([]))(x), True),
      (lambda x: tf.nn.dropout([x], 0.5)[0], True),
      (
        lambda x: tf.data.Dataset.range(9).shuffle(9).reduce(x, _last),
        True,
      ),
      (lambda x: tf.nn.experimental.stateless_dropout([x], 0.5, [1, 2])[0], 0),
      (lambda x: x + tf.random.stateless_uniform([], [1, 2]), False),
    ],
  )
  def test_draws_before_and_after_an_aggregate(self, draw, is_whole):
    draw = tff.tensorflow.computation(draw, np.float32)
    subtract = tff.tensorflow.computation(
      lambda a, b: a - b, np.float32, np.float32
    )

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def center(values):
      drawn = tff.federated_map(draw, values)
      mean = tff.federated_broadcast(tff.federated_mean(drawn))
      return tff.federated_map(subtract, (drawn, mean))

    assert (mergeable.Plan(center).whole is not None) == is_whole
