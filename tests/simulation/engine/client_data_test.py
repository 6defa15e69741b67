"""Client data: building and validating."""

from unittest import mock

import numpy as np
import pytest

from tests.fixtures.refusals import refused
from tff_shift.algorithms.parts import adaptation
from tff_shift.data import client_dataset
from tff_shift.data import examples as examples_lib
from tff_shift.learning import local_training
from tff_shift.learning import periods
from tff_shift.learning import randomness
from tff_shift.models.networks import bi_lstm
from tff_shift.models.networks import mlp
from tff_shift.simulation.engine import client_data


def make_examples(size):
  return examples_lib.Examples(
    np.full([size, 2], size, np.float32), np.arange(size, dtype=np.int32)
  )


def test_examples_are_one_domain_of_a_client_that_is_numbered_by_position():
  examples = [make_examples(size) for size in (2, 3)]
  data = client_data.training_data(examples, run_seed=4)
  for client, (each, expected) in enumerate(zip(data, examples, strict=True)):
    assert each.x is expected.x and each.y is expected.y
    assert each.domain_sizes.tolist() == [len(expected.y)]
    assert each.client_id == client
    np.testing.assert_array_equal(each.seed, randomness.client_seed(4, client))


def test_examples_to_predict_have_the_seed_of_no_client():
  examples = make_examples(5)
  data = client_data.to_predict(examples.x, examples.y, [2, 0, 3], client_id=4)
  assert data.x is examples.x and data.y is examples.y
  assert data.domain_sizes.tolist() == [2, 0, 3]
  assert data.client_id == 4 and data.seed.tolist() == [0, 0]


MODEL = mlp.build((2,), num_classes=3, width=4, head_width=3)


@pytest.fixture
def validator_of(typed_algorithm):
  return lambda data_type: client_data.ClientDataValidator(
    typed_algorithm(MODEL, data_type, num_domains=2)
  )


@pytest.fixture
def validator(validator_of):
  return validator_of(local_training.data_type(MODEL))


def make_data(**changes):
  """Four examples of two domains, in the types that a model takes."""
  data = client_dataset.ClientDataset.from_arrays(
    x=np.arange(8, dtype=np.float32).reshape(4, 2),
    y=np.array([0, 2, 1, 0], np.int32),
    domain_sizes=np.array([1, 3], np.int32),
    seed=randomness.client_seed(1, 2),
    client_id=np.int32(2),
  )
  return data._replace(**changes)


class TestClientDataValidator:
  def test_data_of_the_right_types_stay_the_same_object(self, validator):
    data = make_data()
    data.x.flags.writeable = False
    assert validator.training(data, 0) is data
    assert validator.prediction(data, 0) is data

  def test_what_numpy_makes_by_default_is_cast(self, validator):
    expected = make_data()
    cast = validator.training(
      make_data(
        x=expected.x.astype(np.float64),
        y=expected.y.astype(np.int64),
        domain_sizes=[1, 3],
        seed=expected.seed.tolist(),
        client_id=2,
      ),
      0,
    )
    for name, value in cast._asdict().items():
      wanted = getattr(expected, name)
      assert value.dtype == wanted.dtype, name
      np.testing.assert_array_equal(value, wanted)

  def test_array_that_is_right_is_not_copied_beside_one_that_is_cast(
    self, validator
  ):
    data = make_data(y=np.array([0, 2, 1, 0]))
    assert validator.training(data, 0).x is data.x

  @pytest.mark.parametrize(
    "changes, message",
    [
      (
        {"domain_sizes": np.array([1, 2], np.int32)},
        "domain_sizes of client 7: numbers of at least 0 wanted that add up to"
        " 4, the number of examples, got [1, 2]",
      ),
      (
        {
          "x": np.zeros([0, 2], np.float32),
          "y": np.zeros(0, np.int32),
          "domain_sizes": np.zeros(2, np.int32),
        },
        "x of client 7: there must be at least one example",
      ),
      (
        {"seed": None},
        "seed of client 7 is not set; randomness.client_seed(run_seed, client)"
        " returns one",
      ),
      (
        {"seed": np.zeros(3, np.int32)},
        "seed of client 7: the shape must be [2], got [3]",
      ),
    ],
  )
  def test_what_is_wrong_is_named_with_its_client(
    self, validator, changes, message, refusal
  ):
    assert refusal(validator.training, make_data(**changes), 7) == message

  def test_clients_that_the_algorithm_does_not_distinguish_are_refused(
    self, typed_algorithm, refusal
  ):
    algorithm = typed_algorithm(MODEL, local_training.data_type(MODEL), 2)
    algorithm.max_clients = 2
    validator = client_data.ClientDataValidator(algorithm)
    assert refusal(validator.training, make_data(), 7) == (
      "client_id of client 7: must be below 2, the number of clients of the"
      " algorithm, got 2"
    )

  def test_words_that_the_model_does_not_know_are_refused(
    self, typed_algorithm, refusal
  ):
    model = bi_lstm.build(
      input_shape=(2,), num_classes=3, vocabulary_size=9, width=1
    )
    validator = client_data.ClientDataValidator(
      typed_algorithm(model, local_training.data_type(model), num_domains=2)
    )
    x = np.full([4, 2], 8, np.int32)
    assert validator.training(make_data(x=x), 7).x is x
    assert refusal(validator.training, make_data(x=x + 1), 7) == (
      "x of client 7: ids of words must lie in 0..8, got 9..9"
    )

  def test_data_to_predict_have_a_number_of_domains_and_may_be_none(
    self, validator, refusal
  ):
    nothing = make_data(
      x=np.zeros([0, 2]),
      y=np.zeros(0, int),
      domain_sizes=[0, 0],
      num_examples=0,
    )
    assert validator.prediction(nothing, 1).x.dtype == np.float32
    assert refusal(validator.prediction, make_data(domain_sizes=[4]), 1) == (
      "domain_sizes of client 1, to predict: the shape must be [2], got [1]"
    )
    assert refusal(validator.prediction, make_data(num_examples=3), 1) == (
      "num_examples of client 1, to predict: there are 4 examples, got 3"
    )

  def test_what_stands_beside_the_examples_is_checked_too(self, validator_of):
    own = make_data()
    data = adaptation.AdaptationData(
      x=own.x,
      y=own.y,
      stream_x=np.zeros([5, 2]),
      timestep=1,
      confusion=np.eye(3),
      seed=own.seed,
    )
    validator = validator_of(adaptation.data_type(MODEL))
    cast = validator.training(data, 0)
    assert cast.stream_x.dtype == cast.confusion.dtype == np.float32
    assert cast.timestep.dtype == np.int32
    for changes, message in (
      ({"stream_x": np.zeros([0, 2])}, "stream_x of client 0: there must be"),
      ({"confusion": np.eye(4)}, "confusion of client 0: the shape must be"),
      ({"confusion": np.full([3, 3], np.nan)}, "confusion of client 0: all"),
    ):
      with refused(f"^{message}"):
        validator.training(data._replace(**changes), 0)

  def test_what_is_no_named_tuple_of_the_type_is_refused(
    self, validator, refusal
  ):
    for other, name in (
      (make_data()._asdict(), "dict"),
      (periods.PeriodData(*make_data(), [np.nan]), "PeriodData"),
    ):
      for check, what in (
        (validator.training, "client 4"),
        (validator.prediction, "client 4, to predict"),
      ):
        assert refusal(check, other, 4) == (
          f"{what}: a named tuple of x, y, domain_sizes, num_examples,"
          " seed, client_id"
          f" wanted, got {name}"
        )

  def test_what_is_no_examples_is_refused(self, validator):
    with refused(r"^client 4: Examples\(x, y\) wanted, got tuple$"):
      validator.examples(tuple(make_examples(2)), 4)

  def test_what_comes_again_is_not_looked_at_again(self, validator):
    given = [make_data(), make_data(y=np.array([0, 2, 1, 0]))]
    first = validator.training_of_all(given)
    with (
      mock.patch.object(
        examples_lib, "checked", wraps=examples_lib.checked
      ) as examples,
      mock.patch.object(
        examples_lib, "checked_array", wraps=examples_lib.checked_array
      ) as array,
    ):
      again = validator.training_of_all(given, first)
      assert all(
        each.checked is known.checked
        for each, known in zip(again, first, strict=True)
      )
      assert not examples.called and not array.called
      # Of a client with another field, that field alone.
      changed = given[1]._replace(client_id=5)
      last = validator.training_of_all([given[0], changed], again)
      assert last[1].checked.y is first[1].checked.y
      assert last[1].checked.client_id.dtype == np.int32
      assert not examples.called and array.call_count == 1
      # A client that is new.
      validator.training_of_all([given[0], changed, given[0]], last)
      assert examples.call_count == 1
    with refused(r"^y of client 1"):
      validator.training_of_all([given[0], make_data(y=[0, 1, 2])], last)
