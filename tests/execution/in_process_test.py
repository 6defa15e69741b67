"""Tests of the in-process context: by hand, by its rules, and beside C++."""

import asyncio
import collections
import gc
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_shift.execution import in_process
from tff_shift.execution import local

ROOT = Path(__file__).parents[2]
AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
INTS_AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS)


def run(context, computation, *arguments):
  with tff.framework.get_context_stack().install(context):
    return computation(*arguments)


@pytest.fixture(scope="module")
def context():
  return in_process.in_process_context(num_threads=4)


@tff.tensorflow.computation(np.float32, np.float32)
def multiply(a, b):
  return a * b


@tff.tensorflow.computation(np.int32)
def below_three(number):
  check = tf.debugging.assert_less(number, 3, message="too many")
  with tf.control_dependencies([check]):
    return tf.identity(number)


@tff.federated_computation(INTS_AT_CLIENTS)
def all_below_three(numbers):
  return tff.federated_map(below_three, numbers)


class TestResults:
  """Computations whose results one can work out."""

  def test_federated_operators(self, context):
    @tff.federated_computation(
      tff.FederatedType(np.float32, tff.SERVER), AT_CLIENTS
    )
    def operators(factor, values):
      scaled = tff.federated_map(
        multiply, (tff.federated_broadcast(factor), values)
      )
      return collections.OrderedDict(
        scaled=scaled,
        sum=tff.federated_sum(values),
        mean=tff.federated_mean(values),
        weighted_mean=tff.federated_mean(scaled, values),
        min=tff.federated_min(values),
        max=tff.federated_max(values),
        shared=tff.federated_broadcast(factor),
        server=factor,
      )

    result = run(context, operators, 2.0, [1.0, 2.5, 4.5])
    assert result["scaled"] == [2.0, 5.0, 9.0]
    assert result["sum"] == 8.0
    assert result["mean"] == np.float32(8 / 3)
    # (2 * 1 + 5 * 2.5 + 9 * 4.5) / 8 = 55 / 8
    assert result["weighted_mean"] == 6.875
    assert (result["min"], result["max"]) == (1.0, 4.5)
    assert (result["shared"], result["server"]) == (2.0, 2.0)
    assert type(result["sum"]) is np.float32

  def test_value_from_outside_of_a_mapped_function(self, context):
    constant = tff.tensorflow.computation(lambda: tf.constant(3.0))

    @tff.federated_computation(AT_CLIENTS)
    def captures(values):
      three = constant()
      times_three = tff.federated_computation(
        lambda value: multiply(value, three), np.float32
      )
      return tff.federated_map(times_three, values)

    assert run(context, captures, [1.0, 2.5]) == [3.0, 7.5]

  def test_literal_block(self, context):
    literal = tff.framework.Literal(
      np.array([1, 2], np.int32), tff.TensorType(np.int32, [2])
    )
    computation = tff.framework.ConcreteComputation.from_building_block(
      tff.framework.Lambda(None, None, literal)
    )
    assert run(context, computation).tolist() == [1, 2]

  def test_eval_and_value_use_the_default_number_of_clients(self):
    @tff.federated_computation
    def ones():
      one = tff.tensorflow.computation(lambda: tf.constant(1))
      return (
        tff.federated_eval(one, tff.CLIENTS),
        tff.federated_eval(one, tff.SERVER),
        tff.federated_sum(tff.federated_value(1, tff.CLIENTS)),
      )

    context = in_process.in_process_context(default_num_clients=3)
    assert run(context, ones) == ([1, 1, 1], 1, 3)

  def test_select(self, context):
    @tff.federated_computation(
      tff.FederatedType((np.int32, [2]), tff.CLIENTS),
      tff.FederatedType((np.str_, [3]), tff.SERVER),
    )
    def select_and_join(keys, letters):
      selected = tff.federated_select(
        keys,
        tff.federated_value(3, tff.SERVER),
        letters,
        tff.tensorflow.computation(lambda words, key: tf.gather(words, key)),
      )
      join = tff.tensorflow.computation(
        lambda dataset: dataset.reduce("", lambda a, b: tf.strings.join([a, b]))
      )
      return tff.federated_map(join, selected)

    keys = [np.array(each, np.int32) for each in ([0, 1], [2, 0], [1, 1])]
    joined = run(context, select_and_join, keys, ["a", "b", "c"])
    assert joined == [b"ab", b"ca", b"bb"]
    with pytest.raises(ValueError, match="below 3; got 5"):
      run(context, select_and_join, [np.array([5, 0], np.int32)], ["", "", ""])

  def test_strings_with_zero_bytes(self, context):
    @tff.tensorflow.computation(np.str_, (np.str_, [None]))
    def shout(word, words):
      return tf.strings.join([word, "!"]), tf.strings.upper(words)

    word, words = run(context, shout, b"a\0", np.array(["b", b"c\0"], object))
    assert word == b"a\0!"
    assert words.tolist() == [b"B", b"C\0"]

  def test_containers_and_keywords(self, context):
    pair = collections.namedtuple("pair", ["second", "first"])

    @tff.tensorflow.computation(np.int32, np.float32)
    def swap(first, second):
      return pair(second=second, first=first)

    assert run(context, lambda: swap(second=2.0, first=1)) == pair(2.0, 1)

  def test_sequences_from_lists_and_datasets(self, context):
    element = collections.OrderedDict(number=np.int32, row=(np.float32, [None]))

    @tff.tensorflow.computation(tff.SequenceType(element))
    def look(dataset):
      swapped = dataset.map(
        lambda each: collections.OrderedDict(row=each["row"], n=each["number"])
      )
      zero = (0, 0.0)
      return swapped, dataset.reduce(
        zero,
        lambda state, each: (
          state[0] + each["number"],
          state[1] + tf.reduce_sum(each["row"]),
        ),
      )

    # Rows of different lengths, and names whose order is not alphabetical.
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0]]
    elements = [
      collections.OrderedDict(number=index, row=row)
      for index, row in enumerate(rows)
    ]
    swapped, sums = run(context, look, elements)
    assert sums == (3, 15.0)
    assert [each["n"] for each in swapped.as_numpy_iterator()] == [0, 1, 2]
    again, _ = run(
      context,
      look,
      swapped.map(
        lambda each: collections.OrderedDict(number=each["n"], row=each["row"])
      ),
    )
    assert [each["row"].tolist() for each in again.as_numpy_iterator()] == rows
    assert run(context, look, [])[1] == (0, 0.0)

  def test_loop_over_a_dataset_within_another(self, context):
    # The inner reduction is part of a function of the graph.
    @tff.tensorflow.computation(tff.SequenceType(np.int64))
    def sum_of_sums(limits):
      def add(a, b):
        return a + b

      return limits.reduce(
        np.int64(0),
        lambda total, limit: (
          total + tf.data.Dataset.range(limit).reduce(np.int64(0), add)
        ),
      )

    # 0, 0, 0 + 1, 0 + 1 + 2, 0 + 1 + 2 + 3
    assert run(context, sum_of_sums, tf.data.Dataset.range(5)) == 10

  def test_no_clients(self, context):
    @tff.federated_computation(AT_CLIENTS)
    def double_and_sum(values):
      doubled = tff.federated_map(multiply, (values, values))
      return doubled, tff.federated_sum(values)

    assert run(context, double_and_sum, []) == ([], 0.0)


class TestIsolation:
  """Clients in parallel threads do not meet."""

  def test_variables_of_parallel_clients(self, context):
    @tff.tensorflow.computation(np.int32)
    def count(limit):
      counter = tf.Variable(0)
      steps = tf.while_loop(
        # Read inside the loop: the initializer must have run before.
        lambda _: counter.read_value() < limit,
        lambda step: counter.assign_add(1) * 0 + step + 1,
        [0],
      )
      with tf.control_dependencies(steps):
        return counter.read_value(), steps[0]

    limits = [37 * index % 101 for index in range(60)]
    counted = run(
      context,
      tff.federated_computation(
        lambda values: tff.federated_map(count, values), INTS_AT_CLIENTS
      ),
      limits,
    )
    assert counted == [(limit, limit) for limit in limits]

  def test_tables_of_parallel_clients(self, context):
    @tff.tensorflow.computation(np.int32)
    def look_up(key):
      table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([1, 2], ["one", "two"]), "none"
      )
      return table.lookup(key)

    words = run(
      context,
      tff.federated_computation(
        lambda values: tff.federated_map(look_up, values), INTS_AT_CLIENTS
      ),
      [1, 2, 3] * 10,
    )
    assert words == [b"one", b"two", b"none"] * 10


class TestErrors:
  @pytest.mark.parametrize(
    ("arguments", "message"),
    [
      ((np.float64(1.0), 1.0), "float32 was expected; got float64"),
      ((tf.constant(1.0, tf.float64), 1.0), "got float64"),
      ((1, 1.0), "float32 was expected; got int"),
      ((True, 1.0), "got bool"),
      ((1e300, 1.0), "got float"),
      ((None, 1.0), "got NoneType"),
      ((np.zeros(2, np.float32), 1.0), r"got shape \(2,\)"),
    ],
  )
  def test_wrong_argument_type(self, context, arguments, message):
    with pytest.raises(TypeError, match=message):
      run(context, multiply, *arguments)

  def test_narrower_argument_is_widened(self, context):
    assert run(context, multiply, np.float16(1.5), tf.constant(2.0)) == 3.0
    half = tf.constant(0.5, tf.float16)
    assert run(context, multiply, half, tf.Variable(4.0)) == 2.0

  def test_wrong_structure(self, context):
    element = collections.OrderedDict(a=np.int32, b=np.int32)
    first = tff.tensorflow.computation(lambda x: x["a"], element)
    assert run(context, first, collections.OrderedDict(a=1, b=2)) == 1
    with pytest.raises(TypeError, match="named a where b was found"):
      run(context, first, collections.OrderedDict(b=2, a=1))
    with pytest.raises(TypeError, match="must have 2 elements; got 1"):
      run(context, first, collections.OrderedDict(a=1))
    with pytest.raises(TypeError, match="must be a structure; got int"):
      run(context, first, 1)

  def test_wrong_sequence(self, context):
    count = tff.tensorflow.computation(
      lambda dataset: dataset.reduce(0, lambda state, _: state + 1),
      tff.SequenceType(np.int32),
    )
    with pytest.raises(TypeError, match=r"int32\* was expected; got int64\*"):
      run(context, count, tf.data.Dataset.range(3))
    with pytest.raises(TypeError, match=r"must be a tf\.data\.Dataset"):
      run(context, count, 3)

  def test_clients_that_are_no_list_or_disagree(self, context):
    @tff.federated_computation(AT_CLIENTS, AT_CLIENTS)
    def two_sums(a, b):
      return tff.federated_sum(a), tff.federated_sum(b)

    with pytest.raises(TypeError, match="must be a list"):
      run(context, two_sums, np.ones(2, np.float32), [1.0, 1.0])
    with pytest.raises(ValueError, match="got 1 and 2"):
      run(context, two_sums, [1.0], [1.0, 1.0])

  def test_failing_client_is_named(self, context):
    with pytest.raises(
      in_process.ClientError, match=r"(?s)client 2 of 4 failed.*too many"
    ) as error:
      run(context, all_below_three, [1, 2, 7, 0])
    assert isinstance(error.value.__cause__, tf.errors.InvalidArgumentError)
    # The context is as good as before.
    assert run(context, all_below_three, [1, 2, 0, 0]) == [1, 2, 0, 0]

  def test_unsupported_intrinsic_and_block_are_named(self, context):
    secure = tff.federated_computation(
      lambda values: tff.federated_secure_sum_bitwidth(values, 4),
      INTS_AT_CLIENTS,
    )
    with pytest.raises(
      NotImplementedError,
      match=r"federated_secure_sum_bitwidth.*\{int32\}@CLIENTS -> int32@SERVER",
    ):
      run(context, secure, [1, 2])
    with pytest.raises(NotImplementedError, match="kind xla"):
      run(context, tff.jax.computation(lambda x: x + 1, np.int32), 1)

  @pytest.mark.parametrize(
    ("options", "message"),
    [
      ({"num_threads": 0}, "num_threads must be 1 or more; got 0"),
      ({"default_num_clients": -1}, "default_num_clients"),
      ({"server_device": "GPU:7"}, "/device:CPU:0.*got 'GPU:7'"),
      ({"client_devices": ["toaster"]}, "/device:CPU:0.*got 'toaster'"),
      ({"client_devices": []}, "at least one"),
    ],
  )
  def test_bad_options(self, options, message):
    with pytest.raises(ValueError, match=message):
      in_process.in_process_context(**options)


def build_model():
  keras_model = tf.keras.Sequential(
    [
      tf.keras.layers.Dense(8, "relu", input_shape=(4,)),
      tf.keras.layers.Dense(3),
    ]
  )
  return tff.learning.models.functional_model_from_keras(
    keras_model,
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=(
      tf.TensorSpec([None, 4], tf.float32),
      tf.TensorSpec([None], tf.int32),
    ),
    metrics_constructor=collections.OrderedDict(
      loss=lambda: tf.keras.metrics.SparseCategoricalCrossentropy(
        from_logits=True
      ),
      accuracy=tf.keras.metrics.SparseCategoricalAccuracy,
    ),
  )


def client_datasets(sizes, seed=0):
  generator = np.random.default_rng(seed)
  return [
    tf.data.Dataset.from_tensor_slices(
      (
        generator.normal(size=(size, 4)).astype(np.float32),
        generator.integers(0, 3, size).astype(np.int32),
      )
    ).batch(5)
    for size in sizes
  ]


def build_fed_avg():
  return tff.learning.algorithms.build_weighted_fed_avg(
    build_model(),
    tff.learning.optimizers.build_sgdm(0.1),
    tff.learning.optimizers.build_sgdm(1.0, 0.9),
  )


def leaves(value):
  return tree.flatten(in_process.to_numpy(value))


class TestRounds:
  """Federated averaging over rounds, on this context alone."""

  @pytest.fixture(scope="class")
  def process(self):
    return build_fed_avg()

  @pytest.fixture(scope="class")
  def start(self, process):
    return run(in_process.in_process_context(), process.initialize)

  @staticmethod
  def train(context, process, state, num_rounds):
    outputs = []
    for seed in range(num_rounds):
      datasets = client_datasets([20, 13, 7, 0, 9], seed)
      output = run(context, process.next, state, datasets)
      state = output.state
      outputs.append(output)
    return outputs

  def test_same_bits_for_any_number_of_threads(self, process, start):
    expected = None
    for num_threads in (1, 2, 5, 2):
      context = in_process.in_process_context(num_threads=num_threads)
      outputs = self.train(context, process, start, 3)
      found = [leaf.tobytes() for leaf in leaves((outputs[-1].state,))]
      found += [leaves(output.metrics) for output in outputs]
      expected = expected or found
      assert found == expected

  def test_tensors_are_carried_as_they_are(self, process, start):
    numpy_context = in_process.in_process_context()
    tensor_context = in_process.in_process_context(materialize=False)
    expected = self.train(numpy_context, process, start, 2)[-1]
    found = self.train(tensor_context, process, start, 2)[-1]
    assert all(
      isinstance(leaf, tf.Tensor)
      for leaf in tree.flatten((found.state, found.metrics))
    )
    assert type(found.state) is type(expected.state)
    for ours, theirs in zip(leaves(found), leaves(expected), strict=True):
      assert ours.dtype == theirs.dtype
      np.testing.assert_array_equal(ours, theirs)
    # A state that only passes through is the very same object.
    same = tff.federated_computation(
      lambda state: state, process.next.type_signature.parameter[0]
    )
    passed = run(tensor_context, same, found.state)
    assert all(
      ours is theirs
      for ours, theirs in zip(
        tree.flatten(passed), tree.flatten(found.state), strict=True
      )
    )

  def test_imports_and_traces_do_not_grow(self, process, start):
    context = in_process.in_process_context()
    self.train(context, process, start, 1)
    counts = context.num_imports, context.num_traces
    self.train(context, process, start, 4)
    assert (context.num_imports, context.num_traces) == counts

  def test_asynchronous_and_mergeable_forms(self, process, start):
    datasets = client_datasets([20, 13, 7])
    expected = run(
      in_process.in_process_context(), process.next, start, datasets
    )
    asynchronous = in_process.async_in_process_context()
    found = asyncio.run(run(asynchronous, process.next, start, datasets))
    tree.map_structure(np.testing.assert_array_equal, found, expected)
    mergeable = tff.backends.native.create_mergeable_comp_execution_context(
      [asynchronous, in_process.async_in_process_context()]
    )
    merged = run(mergeable, process.next, start, datasets)
    for ours, theirs in zip(
      tree.flatten(merged), tree.flatten(expected), strict=True
    ):
      # Two partial sums are added: another order of the same numbers.
      np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


class TestCounting:
  def test_one_import_and_trace_for_each_block(self):
    @tff.federated_computation(AT_CLIENTS)
    def sum_of_squares(values):
      return tff.federated_sum(tff.federated_map(multiply, (values, values)))

    context = in_process.in_process_context()
    for _ in range(3):
      assert run(context, sum_of_squares, [1.0, 2.0, 3.0]) == 14.0
    # The square, the zero to start from, and the addition.
    assert (context.num_imports, context.num_traces) == (3, 3)
    # A computation's functions go with it.
    del sum_of_squares
    gc.collect()
    assert (context.num_imports, context.num_traces) == (0, 0)


class TestInstallation:
  def test_with_block_restores_the_former_context(self, context):
    stack = tff.framework.get_context_stack()
    former = stack.current
    with context as entered:
      assert stack.current is entered is context
      with context:  # Again, within itself.
        assert multiply(2.0, 3.0) == 6.0
      assert stack.current is context
    assert stack.current is former
    with pytest.raises(KeyError), context:
      raise KeyError
    assert stack.current is former


PLACEMENT_SCRIPT = """
import sys
import numpy as np
import tensorflow as tf
tf.debugging.set_log_device_placement(True)
tf.config.set_logical_device_configuration(
  tf.config.list_physical_devices("CPU")[0],
  [tf.config.LogicalDeviceConfiguration()] * 3,
)
import tensorflow_federated as tff
from tff_shift.execution import in_process

@tff.tensorflow.computation(
  (np.float32, [2, 2]), tff.SequenceType((np.float32, [None, 2]))
)
def client_work(weights, batches):
  total = tf.Variable(tf.zeros([2, 2]))
  def step(state, batch):
    total.assign_add(tf.matmul(batch, batch @ weights, transpose_a=True))
    return state + 1
  with tf.control_dependencies([batches.reduce(0, step)]):
    return tf.linalg.inv(total.read_value() + tf.eye(2))

@tff.federated_computation(
  tff.FederatedType((np.float32, [2, 2]), tff.SERVER),
  tff.FederatedType(tff.SequenceType((np.float32, [None, 2])), tff.CLIENTS),
)
def one_round(weights, data):
  results = tff.federated_map(
    client_work, (tff.federated_broadcast(weights), data)
  )
  server_work = tff.tensorflow.computation(lambda x: tf.linalg.det(x))
  return tff.federated_map(server_work, tff.federated_sum(results))

datasets = [
  tf.data.Dataset.from_tensor_slices(np.eye(2, dtype=np.float32)).batch(1)
] * 3
with in_process.in_process_context("CPU:0", ["CPU:1", "CPU:2"]) as context:
  # Each client: (I + I)^-1 = I / 2. The sum is 1.5 I, with determinant 2.25.
  print("RESULT", one_round(np.eye(2, dtype=np.float32), datasets))
  print("IMPORTS", context.num_imports)
"""


class TestPlacement:
  def test_placer_log(self):
    # TensorFlow's devices are settled once for a process.
    finished = subprocess.run(
      [sys.executable, "-c", textwrap.dedent(PLACEMENT_SCRIPT)],
      cwd=ROOT,
      capture_output=True,
      text=True,
      timeout=120,
    )
    assert "RESULT 2.25" in finished.stdout, finished.stderr[-2000:]
    # Client work on two devices; zero, addition and determinant on the server.
    assert "IMPORTS 5" in finished.stdout
    devices = collections.defaultdict(set)
    for operation, device in re.findall(
      # The placer prints each node's name, operation and device.
      r"^\S+: \((\w+)\): /job:localhost.*/device:(CPU:\d)$",
      finished.stdout,
      re.MULTILINE,
    ):
      devices[operation].add(device)
    for operation in (
      "MatMul",
      "MatrixInverse",
      "VarHandleOp",
      "AssignAddVariableOp",
      "ReadVariableOp",
    ):
      assert devices[operation] == {"CPU:1", "CPU:2"}, operation
    assert devices["MatrixDeterminant"] == {"CPU:0"}
    assert devices["IteratorGetNextAsOptional"] == {"CPU:0"}


ALGORITHMS = tff.learning.algorithms
SGD = tff.learning.optimizers.build_sgdm(0.1)
SERVER_SGD = tff.learning.optimizers.build_sgdm(1.0)


@pytest.mark.cpp
class TestBesideCpp:
  """Each round from the same state, here and on TFF's C++ executor."""

  @pytest.fixture(scope="class")
  def cpp(self):
    with local.local_context() as context:
      yield context

  @staticmethod
  def assert_same(found, expected):
    tree.assert_same_structure(found, expected)
    for ours, theirs in zip(
      tree.flatten(found), tree.flatten(expected), strict=True
    ):
      assert type(ours) is type(theirs)
      assert np.shape(ours) == np.shape(theirs)
      np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)

  @pytest.mark.parametrize(
    "build",
    [
      lambda: ALGORITHMS.build_weighted_fed_avg(build_model(), SGD, SERVER_SGD),
      lambda: ALGORITHMS.build_weighted_fed_avg(
        build_model(),
        SGD,
        SERVER_SGD,
        model_aggregator=tff.learning.robust_aggregator(),
        loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
      ),
      lambda: ALGORITHMS.build_unweighted_fed_avg(
        build_model(), tff.learning.optimizers.build_adam(0.01), SERVER_SGD
      ),
      lambda: ALGORITHMS.build_weighted_fed_prox(
        build_model(), 0.3, SGD, SERVER_SGD
      ),
      lambda: ALGORITHMS.build_fed_sgd(build_model(), SGD),
      lambda: ALGORITHMS.build_weighted_mime_lite(
        build_model(), tff.learning.optimizers.build_sgdm(0.1, 0.9)
      ),
      lambda: ALGORITHMS.build_fed_eval(build_model()),
    ],
    ids=[
      "fed_avg",
      "fed_avg_robust",
      "unweighted_fed_avg",
      "fed_prox",
      "fed_sgd",
      "mime_lite",
      "fed_eval",
    ],
  )
  def test_stock_algorithm(self, context, cpp, build):
    process = build()
    state = run(context, process.initialize)
    self.assert_same(state, run(cpp, process.initialize))
    for seed in range(2):
      datasets = client_datasets([20, 13, 0, 7], seed)
      found = run(context, process.next, state, datasets)
      expected = run(cpp, process.next, state, datasets)
      self.assert_same(tuple(found), tuple(expected))
      state = found.state

  def test_k_means(self, context, cpp):
    process = ALGORITHMS.build_fed_kmeans(3, (2,), random_seed=(1, 2))
    state = run(context, process.initialize)
    generator = np.random.default_rng(0)
    for _ in range(2):
      datasets = [
        tf.data.Dataset.from_tensor_slices(
          generator.normal(size=(size, 2)).astype(np.float32)
        )
        for size in (8, 9, 20)
      ]
      found = run(context, process.next, state, datasets)
      expected = run(cpp, process.next, state, datasets)
      self.assert_same(tuple(found), tuple(expected))
      state = found.state

  def test_no_clients(self, context, cpp):
    process = build_fed_avg()
    state = run(context, process.initialize)
    found = run(context, process.next, state, [])
    self.assert_same(tuple(found), tuple(run(cpp, process.next, state, [])))

  @pytest.mark.parametrize(
    "arguments",
    [(np.float64(1.0), 1.0), (1, 1.0), (1e300, 1.0), ([1.0], 1.0)],
  )
  def test_type_errors(self, context, cpp, arguments):
    for each in (context, cpp):
      with pytest.raises(TypeError):
        run(each, multiply, *arguments)
