"""Tests of the table of clients' values: against the values themselves."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from tests.fixtures import clients
from tff_shift.data import client_dataset
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning.aggregators import client_slots
from tff_shift.learning.aggregators import factories

NUM_CLIENTS = 5


def value_of(client_id):
  """A matrix and a number of each client, of two types."""
  generator = np.random.default_rng(client_id)
  return collections.OrderedDict(
    matrix=generator.normal(size=(2, 3)).astype(np.float32),
    count=np.int32(client_id + 7),
  )


def table_of(chosen):
  """What NumPy makes of the values of some clients."""
  table = collections.OrderedDict(
    matrix=np.zeros((NUM_CLIENTS, 2, 3), np.float32),
    count=np.zeros(NUM_CLIENTS, np.int32),
  )
  for client_id in chosen:
    for name, part in value_of(client_id).items():
      table[name][client_id] = part
  return table


class TestTotal:
  @settings(max_examples=20)
  @given(st.lists(st.integers(0, NUM_CLIENTS - 1), min_size=1, unique=True))
  def test_sum_holds_the_value_of_each_client(self, chosen):
    placed = [client_slots.place(value_of(each), each) for each in chosen]
    summed = client_slots.total(placed, NUM_CLIENTS)
    for name, table in table_of(chosen).items():
      assert_array_equal(summed.values[name], table)
    assert_array_equal(
      summed.present, [float(i in chosen) for i in range(NUM_CLIENTS)]
    )

  def test_infinite_value_stays_in_its_row(self):
    row = client_slots.place(tf.constant([np.inf, np.nan]), 1)
    assert_array_equal(
      client_slots.total([row], 3).values, [[0, 0], [np.inf, np.nan], [0, 0]]
    )

  @pytest.mark.parametrize("client_id", [-2, -1, NUM_CLIENTS])
  def test_client_without_a_row_is_lost(self, client_id):
    rows = [
      client_slots.place(tf.constant(each), number)
      for number, each in ((0, 2.0), (client_id, np.nan))
    ]
    summed = client_slots.total(rows, NUM_CLIENTS)
    assert_array_equal(summed.values, [2, 0, 0, 0, 0])
    assert_array_equal(summed.present, [1, 0, 0, 0, 0])

  def test_zeros_in_place_of_a_row_are_none(self):
    row = client_slots.place(tf.constant(3.0), 2)
    nothing = tf.nest.map_structure(
      lambda each: tf.zeros_like(tf.convert_to_tensor(each)), row
    )
    assert not np.any(client_slots.total([nothing], NUM_CLIENTS).present)

  def test_rows_and_plain_values_in_one_structure(self):
    values = [
      {
        "own": (client_slots.place(tf.constant(3.0 + i), i),),
        "sum": np.int32(10 + i),
      }
      for i in range(2)
    ]
    summed = client_slots.total(values, 2)
    assert_array_equal(summed["own"][0].values, [3, 4])
    assert summed["sum"] == 21


def build(**options):
  """The server keeps the first example of each client, row by row."""
  spec = algorithm_lib.AlgorithmSpec(
    initial_weights=lambda seed: client_slots.Slots(
      tf.zeros([NUM_CLIENTS, 2]), tf.zeros([NUM_CLIENTS])
    ),
    train_client=lambda weights,
    state,
    data,
    round_num: algorithm_lib.ClientResult(
      update=(),
      client_state=(),
      loss=tf.constant(0.0),
      plaintext_sum=client_slots.place(data.x[0], data.client_id),
    ),
    update_server=lambda weights, update, plaintext_sum, info: plaintext_sum,
    predict_as_client=lambda weights, state, data, examples: examples.x,
  )
  return clients.build(spec, num_features=2, **options)


REQUIREMENTS = factories.AggregationRequirements(
  per_client_values="rows are compared"
)


@pytest.mark.slow
class TestThroughTff:
  @pytest.fixture(scope="class")
  def algorithm(self, context):
    del context
    return build(requirements=REQUIREMENTS, num_clients=NUM_CLIENTS)

  def weights_after(self, algorithm, rows):
    """Returns the table after a round: the first row of each client by id."""
    zeros = np.zeros(2, np.int32)
    data = [
      client_dataset.ClientDataset.from_arrays(
        np.float32([row, [9, 9]]), zeros, None, zeros, client_id
      )
      for client_id, row in rows.items()
    ]
    state = algorithm.initialize(zeros)
    state, _, _ = algorithm.phases[0](state, [(), ()], data)
    return state.weights

  def test_server_holds_the_rows_of_those_that_took_part(self, algorithm):
    weights = self.weights_after(algorithm, {1: (1, 0.1), 4: (4, 0.1)})
    expected = np.zeros((NUM_CLIENTS, 2), np.float32)
    expected[1], expected[4] = (1, 0.1), (4, 0.1)
    assert_array_equal(weights.values, expected)
    assert_array_equal(weights.present, [0, 1, 0, 0, 1])

  def test_client_that_diverges_has_no_row(self, algorithm):
    weights = self.weights_after(algorithm, {0: (np.nan, 0), 1: (2, 2)})
    assert_array_equal(weights.present, [0, 1, 0, 0, 0])

  def test_a_client_sends_its_row_alone(self, algorithm):
    _, message = algorithm.client_halves[0].type_signature.result
    assert message.member.plaintext_sum == tff.types.to_type(
      client_slots.Row(tff.TensorType(np.float32, (2,)), np.int32)
    )

  def test_a_sum_that_is_declared_does_not_allow_rows(self):
    declared = factories.AggregationRequirements(plaintext_sums="it is summed")
    with pytest.raises(TypeError, match="per_client_values"):
      build(requirements=declared, num_clients=NUM_CLIENTS)

  def test_needs_the_number_of_rows(self):
    with pytest.raises(TypeError, match="num_clients"):
      build(requirements=REQUIREMENTS)

  def test_type_shows_that_rows_leave_the_client(self, algorithm):
    # What each worker sends before the parts are merged.
    form = tff.backends.native.compile_to_mergeable_comp_form(
      algorithm.phases[0]
    )
    sent = form.up_to_merge.type_signature.result
    assert tff.TensorType(
      np.float32, (NUM_CLIENTS, 2)
    ) in tff.structure.flatten(sent.member)
