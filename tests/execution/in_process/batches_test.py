"""Tests of clients in batches: beside the loop over clients."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import device_check
from benchmarks import executor_equality
from tests.fixtures.computations import map_of
from tests.fixtures.refusals import refused
from tff_shift import execution
from tff_shift._util import batch_values
from tff_shift.algorithms import fed_avg
from tff_shift.data import client_dataset
from tff_shift.execution import in_process
from tff_shift.execution.in_process import blocks
from tff_shift.execution.in_process import converters
from tff_shift.execution.in_process import memory
from tff_shift.execution.in_process import packing
from tff_shift.execution.in_process import vectorization
from tff_shift.learning import algorithm
from tff_shift.learning import local_training
from tff_shift.learning.aggregators import factories
from tff_shift.models.networks import mlp

ONE_FEATURE = mlp.build((1,), num_classes=2, width=2, head_width=2)
NUMBER = tff.TensorType(np.float32)
ROWS = tff.TensorType(np.float32, (None, 2))
AT_CLIENTS = tff.FederatedType(NUMBER, tff.CLIENTS)


def in_batches(**options):
  return in_process.in_process_context(batch_clients=True, **options)


def in_a_loop():
  return in_process.in_process_context(batch_clients=False)


@pytest.fixture
def mapped(run):
  """Returns `mapped(function, values, member=NUMBER)`: results in batches."""
  return lambda function, values, member=NUMBER: run(
    in_batches(), map_of(function, member), values
  )


@tff.tensorflow.computation(NUMBER, ROWS)
def train(weight, rows):
  # As many steps as rows, and a branch that depends on them.
  _, result = tf.while_loop(
    lambda step, _: step < tf.shape(rows)[0],
    lambda step, total: (step + 1, 0.9 * total + rows[step]),
    (tf.constant(0), tf.fill([2], weight)),
  )
  return tf.cond(
    tf.reduce_sum(result) > 0, lambda: result, lambda: tf.abs(result) + 1
  )


@tff.tensorflow.computation(train.type_signature.result)
def sum_of(vector):
  return tf.reduce_sum(vector)


@tff.tensorflow.computation(train.type_signature.result, NUMBER)
def distance(vector, mean):
  return tf.reduce_sum((vector - mean) ** 2)


@tff.federated_computation(
  tff.FederatedType(NUMBER, tff.SERVER), tff.FederatedType(ROWS, tff.CLIENTS)
)
def one_round(weight, rows):
  vectors = tff.federated_map(train, (tff.federated_broadcast(weight), rows))
  mean = tff.federated_mean(tff.federated_map(sum_of, vectors))
  # An aggregate of an aggregate, and values at clients.
  distances = tff.federated_map(
    distance, (vectors, tff.federated_broadcast(mean))
  )
  return mean, tff.federated_sum(vectors), tff.federated_max(distances), vectors


def rows_of(*sizes):
  generator = np.random.default_rng(sizes)
  return [generator.normal(size=(n, 2)).astype(np.float32) for n in sizes]


def make_data(*domain_sizes):
  """A client whose examples are the numbers from 0."""
  x = np.arange(sum(domain_sizes), dtype=np.float32)[:, None]
  y = np.zeros(len(x), np.int32)
  return client_dataset.ClientDataset.from_arrays(
    x, y, domain_sizes, np.int32([1, 2])
  )


def looped_calls(built, beside_rounds):
  """Calls of an algorithm for five sizes, with the results of the loop."""
  with in_a_loop():
    return executor_equality.run_all(built, beside_rounds)


def check_calls(calls, context):
  with context:
    for call in calls:
      found = call.computation(*call.arguments)
      assert executor_equality.largest_difference(found, call.result) < 1e-6


@pytest.mark.parametrize(
  "most, ends",
  [(0, [5, 7, 8]), (1, range(1, 9)), (2, [2, 4, 5, 7, 8]), (5, [5, 7, 8])],
)
def test_each_client_is_in_one_block_of_its_shape(most, ends):
  order, plan = blocks.plan([3, 1, 3, 3, 2, 1, 3, 3], most)
  assert order == [0, 2, 3, 6, 7, 1, 5, 4]
  assert plan.ends.tolist() == [0, *ends]
  assert plan.places.tolist() == [0, 5, 1, 2, 7, 6, 3, 4]


class TestBatches:
  @pytest.mark.parametrize("most", [0, 2])
  def test_results_are_those_of_the_loop(self, run, most):
    context = in_batches(clients_per_batch=most)
    for sizes in ((3, 3, 3), (0, 4, 2, 4, 4, 0), (1,)):
      arguments = np.float32(0.5), rows_of(*sizes)
      result = run(context, one_round, *arguments)
      expected = run(in_a_loop(), one_round, *arguments)
      tf.nest.map_structure(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6),
        result,
        expected,
      )
    assert context.forms == {"one_round": "batch"}
    assert context.num_traces == 1

  def test_what_depends_on_the_order_keeps_the_order_of_clients(self, run):
    @tff.tensorflow.computation(NUMBER, NUMBER)
    def accumulate(total, value):
      return 2 * total + value

    first = tff.tensorflow.computation(lambda rows: rows[0, 0], ROWS)
    report = tff.tensorflow.computation(lambda total: total, NUMBER)

    @tff.federated_computation(tff.FederatedType(ROWS, tff.CLIENTS))
    def ordered(rows):
      return tff.federated_aggregate(
        tff.federated_map(first, rows), 0.0, accumulate, accumulate, report
      )

    rows = [np.full((n, 2), x, np.float32) for n, x in ((2, 1), (1, 3), (2, 5))]
    assert run(in_batches(), ordered, rows) == 2 * (2 * 1 + 3) + 5

  def test_what_determines_shapes_is_equal_in_a_batch(self, run):
    # The sum of as many draws as the first domain has examples.
    def draw(data):
      drawn = tf.random.stateless_uniform([data.domain_sizes[0]], [1, 2])
      return tf.reduce_sum(drawn)

    data = [make_data(2, 3), make_data(4, 1), make_data(2, 3)]
    computation = map_of(draw, local_training.data_type(ONE_FEATURE, 2))
    assert run(in_batches(), computation, data) == run(
      in_a_loop(), computation, data
    )

  @pytest.mark.slow
  def test_results_stay_tensors_without_materialize(self, run):
    arguments = np.float32(0.5), rows_of(3, 1, 3)
    result = run(in_batches(materialize=False), one_round, *arguments)
    assert all(isinstance(leaf, tf.Tensor) for leaf in tf.nest.flatten(result))
    again = run(in_batches(), one_round, *arguments)
    tf.nest.map_structure(np.testing.assert_array_equal, result, again)

  def test_results_that_cannot_be_added(self, mapped):
    numbers = list(np.float32([1, -2, 3]))
    assert mapped(lambda x: x > 0, numbers) == [True, False, True]

  def test_lists_and_tensors_are_values_too(self, mapped):
    values = [1.0, tf.constant(2.0), 3.5]
    assert mapped(lambda x: 2 * x, values) == [2, 4, 7]

  @pytest.mark.slow
  def test_branch_without_clients_is_not_run(self, mapped):
    # With no clients the stacking of the loop's values would fail.
    def choose(x):
      return tf.cond(
        x > 0,
        lambda: tf.map_fn(lambda i: x + i, tf.range(3.0)),
        lambda: tf.zeros([3]),
      )

    for numbers in ([1.0, 2.0], [-1.0, -2.0], [1.0, -1.0, 2.0]):
      for x, vector in zip(numbers, mapped(choose, numbers), strict=True):
        assert vector.tolist() == ([x, x + 1, x + 2] if x > 0 else [0, 0, 0])

  def test_draws_in_a_branch_of_a_loop_are_those_of_a_client(self, mapped):
    def draw(x):
      def step(number, drawn):
        return number + 1, tf.cond(
          number > 0, lambda: tf.random.uniform([]), lambda: drawn
        )

      _, drawn = tf.while_loop(
        lambda number, _: number < 2, step, (tf.constant(0), tf.constant(2.0))
      )
      return x + drawn

    result = mapped(draw, [0.0] * 3)
    assert max(result) < 1
    assert len(set(result)) == 3

  def test_variable_of_a_loop_may_become_equal_for_all_clients(self, mapped):
    def reset(x):
      _, result = tf.while_loop(
        lambda number, _: number < 2,
        lambda number, _: (number + 1, tf.cast(number, tf.float32)),
        (tf.constant(0), x),
      )
      return result

    assert mapped(reset, [2.0, 3.0]) == [1, 1]

  def test_error_names_the_client(self, mapped):
    def check(x):
      with tf.control_dependencies([tf.debugging.Assert(x < 3, ["too large"])]):
        return tf.identity(x)

    def take(x):
      return tf.gather([5.0, 6.0, 7.0], tf.cast(x, tf.int32))

    for function, reason in ((check, "too large"), (take, "not in \\[0, 3\\)")):
      with pytest.raises(
        in_process.ClientError, match=rf"client 1 of 3[\s\S]*{reason}"
      ):
        mapped(function, [1.0, 4.0, 2.0])

  def test_operations_and_sums_run_once_for_all_clients(self, run):
    @tff.federated_computation(
      tff.FederatedType(NUMBER, tff.SERVER),
      tff.FederatedType(ROWS, tff.CLIENTS),
    )
    def total(weight, rows):
      weights = tff.federated_broadcast(weight)
      return tff.federated_sum(tff.federated_map(train, (weights, rows)))

    def operations(context, num_clients):
      arguments = np.float32(0.5), rows_of(*[3] * num_clients)
      run(context, total, *arguments)
      counts = device_check.count_events(
        lambda: run(context, total, *arguments)
      )
      if counts is None:
        pytest.skip("this TensorFlow cannot read its profiles")
      return counts["operations"]

    # Less than one for each of the 40 clients more; the loop has many.
    context, loop = in_batches(), in_a_loop()
    assert operations(context, 44) - operations(context, 4) < 40
    assert operations(loop, 44) - operations(loop, 4) > 40 * 20

  def test_operation_in_a_loop_is_said_once(self, run, caplog):
    caplog.set_level("INFO", "absl")
    root = map_of(
      lambda x: tf.linalg.sqrtm(x), tff.TensorType(np.float32, (2, 2))
    )
    context = in_batches()
    for _ in range(2):
      roots = run(context, root, [np.diag(np.float32([4, x])) for x in (1, 9)])
      np.testing.assert_allclose(
        roots, [np.diag([2, 1]), np.diag([2, 3])], atol=1e-6
      )
    assert [record.getMessage() for record in caplog.records] == [
      "mapped runs in batches, except for MatrixSquareRoot: client by client"
    ]

  @pytest.mark.slow
  @pytest.mark.parametrize("name", ["compressed", "robust", "secure"])
  def test_aggregators(self, run, name):
    # The state of private ones has strings: their clients run one by one.
    vectors = tff.types.to_type([(np.float32, [4]), (np.float32, [2, 3])])
    process = factories.build(name, clients_per_round=5).create(vectors, NUMBER)
    generator = np.random.default_rng(0)
    batches, loop = in_batches(), in_a_loop()
    state = run(loop, process.initialize)
    for _ in range(2):
      updates = [
        [generator.normal(size=size).astype(np.float32) for size in (4, (2, 3))]
        for _ in range(5)
      ]
      arguments = state, updates, list(np.float32([1, 2, 1, 3, 1]))
      expected = run(loop, process.next, *arguments)
      found = run(batches, process.next, *arguments)
      assert executor_equality.largest_difference(found, expected) < 1e-6
      state = expected.state
    assert set(batches.forms.values()) == {"batch"}


@pytest.mark.slow
def test_fed_avg():
  """In batches as in the loop, and compiled as well; draws are the same."""
  beside_rounds = "evaluate_clients", "vote"
  calls = looped_calls(executor_equality.build("fed_avg"), beside_rounds)
  context = in_process.in_process_context(compile_clients=True)
  check_calls(calls[: -len(beside_rounds)], context)
  assert set(context.forms.values()) == {"compiled batch"}
  check_calls(calls, in_batches())


class TestCompiled:
  @pytest.mark.parametrize(
    "function",
    [
      # A draw that clients share, and branches that are both run.
      lambda x: x + tf.random.stateless_uniform([], [1, 2]),
      lambda x: tf.cond(x < 0, lambda: -1.0, lambda: tf.sqrt(x)),
    ],
  )
  def test_numbers_are_tensorflows(self, run, function):
    context = in_process.in_process_context(compile_clients=True)
    values = np.float32([4, -1, 9])
    result = run(context, map_of(function, NUMBER), list(values))
    assert result == [function(tf.constant(x)) for x in values]
    assert context.forms["mapped"] == "compiled batch"

  @pytest.mark.parametrize(
    ("function", "reason"),
    [
      (
        lambda x: x
        + tf.map_fn(
          lambda y: tf.random.stateless_uniform([], [1, 2]) * y, tf.ones([2])
        ),
        "XLA draws other numbers: StatelessRandomUniformV2",
      ),
      (
        lambda x: tf.random.uniform([], x, x + 0.1),
        "XLA draws other numbers: drawn without a seed",
      ),
      (
        lambda x: tf.reduce_sum(tf.range(x)),
        "a shape depends on data: Range",
      ),
      # XLA takes it, and would compute other results of it.
      (
        lambda x: tf.reduce_mean(tf.ones([4])[: tf.cast(x, tf.int32)]),
        "a shape depends on data: StridedSlice",
      ),
      (
        lambda x: tf.while_loop(
          lambda i, _: i < 2,
          lambda i, y: (i + 1, y + tf.reduce_sum(tf.fill([i], x))),
          (0, x),
        )[1],
        "a shape depends on data: (BroadcastTo|Fill)",
      ),
    ],
    ids=["draw", "draw without a seed", "range", "slice", "in a loop"],
  )
  def test_what_cannot_be_compiled_is_said_once(
    self, run, caplog, function, reason
  ):
    caplog.set_level("INFO", "absl")
    context = in_process.in_process_context(compile_clients=True)
    computation = map_of(function, NUMBER)
    for _ in range(2):
      run(context, computation, list(np.float32([2, 2])))
    assert len(re.findall(reason, caplog.text)) == 1
    assert context.forms["mapped"] == "batch"


class TestPadding:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    "options", [{"local_epochs": 2}, {"local_steps": 4, "straggler_ratio": 0.5}]
  )
  def test_clients_may_take_different_numbers_of_steps(self, options):
    built = algorithm.build(
      "fed_avg",
      fed_avg.build,
      mlp.build((5,), num_classes=3, width=4, head_width=4),
      fed_avg.HParams(batch_size=4, **options),
      num_evaluation_domains=1,
    )
    check_calls(looped_calls(built, ()), in_batches())

  def test_clients_of_unequal_sizes_are_in_one_batch(self, mapped):
    # The mean of the examples, and as many steps as there are domains.
    def work(data):
      places = tf.range(batch_values.largest(data.num_examples))
      rows = tf.gather(data.x, tf.minimum(places, data.num_examples - 1))
      held = tf.cast(places < data.num_examples, tf.float32)
      mean = tf.reduce_sum(rows[:, 0] * held) / tf.reduce_sum(held)
      num_domains = local_training.num_domains(data)
      return tf.while_loop(
        lambda step, _: step < num_domains,
        lambda step, total: (step + 1, total + mean),
        (tf.constant(0), 0.0),
      )[1]

    data = [make_data(*each) for each in ((3, 2), (4, 4), (5, 1), (0, 6))]
    member = local_training.data_type(ONE_FEATURE, allows_padding=True)
    assert mapped(work, data, member) == [4, 7, 5, 2.5]
    # 5, 8 and 6 rows are 8; the fourth has another number of domains.
    pack = packing.Packer(tff.FederatedType(member, tff.CLIENTS))
    order, plan = blocks.plan(pack.shapes(data), 0)
    assert (order, plan.ends.tolist()) == ([0, 1, 2, 3], [0, 3, 4])

  @pytest.mark.parametrize(
    "size, padded", [(0, 0), (1, 1), (2, 2), (3, 4), (8, 8), (9, 16)]
  )
  def test_rows_are_powers_of_two(self, size, padded):
    member = local_training.data_type(ONE_FEATURE, allows_padding=True)
    pack = packing.Packer(tff.FederatedType(member, tff.CLIENTS))
    data, rows = make_data(size), list(range(size))
    with memory.Memory().lent() as lender:
      packed = [np.array(each) for each in pack([data], lender, [0])]
      as_it_is = [np.array(each) for each in pack([data], lender)]
    assert packed[0].ravel().tolist() == rows + [0] * (padded - size)
    assert packed[1].tolist() == packed[3].tolist() == [0, padded]
    assert as_it_is[0].ravel().tolist() == rows

  def test_value_that_is_not_equal_is_an_error(self, run):
    computation = map_of(lambda x: batch_values.equal(x) + 0, NUMBER)
    assert run(in_a_loop(), computation, [1.0, 2.0]) == [1, 2]
    assert run(in_batches(), computation, [2.0, 2.0]) == [2, 2]
    with pytest.raises(execution.NotBatchedError, match="of a batch differ"):
      run(in_batches(), computation, [1.0, 2.0])

  @pytest.mark.slow
  def test_a_function_that_reads_all_rows_is_not_padded(self):
    model = ONE_FEATURE
    hparams = fed_avg.HParams()
    spec = fed_avg.build(model, hparams)

    def container(spec):
      built = algorithm.build(
        "mine", lambda *_: spec, model, hparams, num_evaluation_domains=1
      )
      return built.phases[0].type_signature.parameter[2].member.python_container

    assert container(spec) is client_dataset.PaddedDataset
    plain = spec._replace(train_client=lambda *each: spec.train_client(*each))
    assert container(plain) is client_dataset.ClientDataset


class TestSizes:
  def test_bytes_of_a_client(self):
    @tf.function(
      input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None, None])],
      autograph=False,
    )
    def work(vectors, rows):
      total = tf.while_loop(
        lambda step, _: step < 2,
        lambda step, total: (step + 1, total + 1.0),
        (0, vectors),
        shape_invariants=(tf.TensorShape([]), vectors.shape),
      )[1]
      return total, rows * 2.0

    found = vectorization.num_bytes(work.get_concrete_function().graph)
    # The vectors as an argument, in the loop and in its body (argument, sum and
    # result), as the loop's result, and returned; the rows similarly.
    assert found[0] % 12 == 0 and found[0] >= 5 * 12
    assert found[1] == 3 * 4

  @pytest.mark.parametrize(
    "total, client, most", [(100, 30, 2), (100, 200, 1), (128, 1, 128)]
  )
  def test_as_many_as_fit(self, total, client, most):
    assert blocks.most_clients(total, client) == most

  @pytest.mark.slow
  def test_blocks_follow_from_the_memory(self, run):
    arguments = np.float32(0.5), rows_of(*[4] * 8)
    expected = {
      most: run(in_batches(clients_per_batch=most), one_round, *arguments)
      for most in (1, 4)
    }
    context = in_batches()
    run(context, one_round, *arguments)
    (compiled,) = context._compiled.living()
    of_client = compiled._batch_programs[False].bytes_per_client(4)
    for most, result in expected.items():
      # Half of it is for the data.
      context.batch_memory = 2 * most * of_client
      tf.nest.map_structure(
        np.testing.assert_array_equal,
        run(context, one_round, *arguments),
        result,
      )

  def test_an_earlier_run_is_kept(self):
    with execution.use("in_process", batch_clients=False):
      assert execution.batch_memory() is None
      execution.keep_batch_memory(1000)
      assert execution.batch_memory() == 1000
    with execution.use("in_process", batch_clients=True) as context:
      assert execution.batch_memory() > 2**20
      execution.keep_batch_memory(None)
      assert execution.batch_memory() is None
      double = map_of(lambda x: 2 * x, NUMBER)
      assert double(list(np.float32([1, 2]))) == [2, 4]
      assert context.forms == {"mapped": "loop"}


class TestNotBatched:
  def test_reason_is_an_error(self, run):
    counts = map_of(
      lambda values: values.reduce(0, lambda total, _: total + 1),
      tff.SequenceType(np.int32),
    )
    with pytest.raises(
      execution.NotBatchedError,
      match=r"the clients of mapped cannot.*argument",
    ):
      run(in_batches(), counts, [[1, 2], [3]])
    with in_a_loop() as context:
      assert counts([[1, 2], [3]]) == [2, 1]
    assert context.forms == {"mapped": "client by client"}

  def test_operation_is_named(self, mapped):
    # As many numbers as the client's value is.
    def draw(x):
      return tf.reduce_sum(tf.random.stateless_uniform([x], [1, 2]))

    with pytest.raises(
      execution.NotBatchedError, match="the operation Stateless"
    ):
      mapped(draw, [1, 2], tff.TensorType(np.int32))

  def test_auto_is_the_loop_if_no_batch_has_two_clients(self, run):
    context = in_process.in_process_context(client_devices=["CPU:0"])
    forms = []
    # On a CPU there is no memory for batches.
    for sizes in ((2, 2), (2, 2), (1, 2), (3,), (1, 2, 1)):
      run(context, one_round, np.float32(0.5), rows_of(*sizes))
      forms.append(context.forms["one_round"])
      context.batch_memory = 2**30
    assert forms == ["loop", "batch", "loop", "loop", "batch"]

  @pytest.mark.parametrize(
    ("options", "message"),
    [
      ({"batch_clients": 1}, "batch_clients must be 'auto', True or False"),
      ({"clients_per_batch": -1}, "clients_per_batch must be 0 or more"),
      (
        {"compile_clients": True, "batch_clients": False},
        "compile_clients needs batches",
      ),
    ],
  )
  def test_values_out_of_range(self, options, message):
    with refused(message):
      execution.use("in_process", **options)
    with refused("a setting of the executor in_process"):
      execution.use("local", **options)


class TestConverters:
  @pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
  @pytest.mark.parametrize("size", [1, 2, 7, 8])
  def test_philox_draws_tensorflows_numbers(self, dtype, size):
    key = np.uint64([[0], [2**64 - 1], [123456789123456789]])
    # The lower half overflows in the second.
    counter = np.uint64([[0, 0], [2**64 - 1, 5], [2**63, 2**64 - 1]])
    found = converters.philox(tf.as_dtype(dtype))(
      tf.constant(key), tf.constant(counter), tf.constant(size)
    )
    expected = [
      tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[size], key=k, counter=c, alg=1, dtype=dtype
      )
      for k, c in zip(key, counter, strict=True)
    ]
    np.testing.assert_array_equal(found, expected)
