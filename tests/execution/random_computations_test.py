"""Random federated computations beside what NumPy computes."""

import collections
import contextlib
import functools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift import execution
from tff_shift.execution import in_process
from tff_shift.execution import local

# Number of keys, or of elements of the table, in a `federated_select`.
NUM_KEYS = 4
# The arguments of a computation; the last three only if it uses them.
NAMES = ("first", "second", "at_server", "sequences", "keys", "struct")


@functools.cache
def block(function, *types):
  """Returns a TensorFlow block: one object, as a user has it."""
  return tff.tensorflow.computation(function, *types)


def reduce_sequence(values, member):
  return values.reduce(
    tf.zeros(member.shape, member.dtype.type), lambda total, x: 2 * total + x
  )


class Kind:
  """Builds the values of one example, all of one type.

  A value is `(placement, value)`: of "clients", "server", or "shared" by all
  clients. `Federated` computes with TFF's values and `Oracle` with arrays, of
  which clients have a list.
  """

  def __init__(self, member: tff.TensorType):
    self.member = member


class Federated(Kind):
  def map(self, function, *values):
    placements = {placement for placement, _ in values}
    values = tuple(value for _, value in values)
    call = block(function, *[self.member] * len(values))
    result = tff.federated_map(call, values[0] if len(values) == 1 else values)
    if placements == {"server"}:
      return "server", result
    return "clients", result

  def aggregate(self, name, value):
    value = value[1]
    if name == "weighted_mean":
      weight = block(lambda x: 1.0 + tf.abs(tf.reduce_sum(x)), self.member)
      return "server", tff.federated_mean(
        value, tff.federated_map(weight, value)
      )
    if name == "aggregate":
      zeros = block(lambda: tf.zeros(self.member.shape, self.member.dtype.type))
      accumulate = block(add, self.member, self.member)
      report = block(double, self.member)
      return "server", tff.federated_aggregate(
        value, zeros(), accumulate, accumulate, report
      )
    return "server", getattr(tff, f"federated_{name}")(value)

  def broadcast(self, value):
    return "shared", tff.federated_broadcast(value[1])

  def constant(self, placement, number):
    call = block(
      lambda: tf.fill(
        self.member.shape, tf.cast(number, self.member.dtype.type)
      )
    )
    if placement == "shared":
      return placement, tff.federated_value(call(), tff.CLIENTS)
    return placement, tff.federated_eval(
      call, tff.SERVER if placement == "server" else tff.CLIENTS
    )

  def part(self, placement, struct):
    return placement, tff.federated_value(
      struct.b, tff.SERVER if placement == "server" else tff.CLIENTS
    )

  def second_of_zip(self, first, second):
    pair = tff.federated_zip(collections.OrderedDict(b=first[1], a=second[1]))
    return first[0], pair.a

  def select(self, keys, value):
    def choose(table, key):
      return tf.cast(key, table.dtype) + table

    chosen = tff.federated_select(
      keys[1],
      tff.federated_value(np.int32(NUM_KEYS), tff.SERVER),
      value[1],
      block(choose, self.member, np.int32),
    )
    return self.reduce(("clients", chosen))

  def reduce(self, sequences):
    return "clients", tff.federated_map(
      block(
        lambda each: reduce_sequence(each, self.member),
        tff.SequenceType(self.member),
      ),
      sequences[1],
    )


class Oracle(Kind):
  num_clients = 0

  def _at_clients(self, value):
    placement, value = value
    return value if placement == "clients" else [value] * self.num_clients

  def map(self, function, *values):
    function = NUMPY.get(function, function)
    if {placement for placement, _ in values} == {"server"}:
      return "server", function(*[value for _, value in values])
    columns = map(self._at_clients, values)
    return "clients", [function(*each) for each in zip(*columns, strict=True)]

  def aggregate(self, name, value):
    values = np.stack(self._at_clients(value))
    if name == "weighted_mean":
      weights = 1 + np.abs(values.sum(axis=tuple(range(1, values.ndim))))
      return "server", np.average(values, 0, weights)
    if name == "aggregate":
      return "server", 2 * values.sum(0)
    return "server", getattr(np, name)(values, axis=0)

  def broadcast(self, value):
    return "shared", value[1]

  def constant(self, placement, number):
    value = np.full(self.member.shape, number)
    return placement, (
      [value] * self.num_clients if placement == "clients" else value
    )

  def part(self, placement, struct):
    return placement, struct["b"]

  def second_of_zip(self, first, second):
    return second

  def _reduce(self, values):
    return functools.reduce(
      lambda total, x: 2 * total + x, values, np.zeros(self.member.shape)
    )

  def select(self, keys, value):
    return "clients", [
      self._reduce([key + value[1] for key in each]) for each in keys[1]
    ]

  def reduce(self, sequences):
    return "clients", [self._reduce(each) for each in sequences[1]]


def double(x):
  return 2 * x


def negate(x):
  return 3 - x


def add(x, y):
  return x + y


def subtract(x, y):
  return x - y


def maximum(x, y):
  return tf.maximum(x, y)


NUMPY = {maximum: np.maximum}
UNARY, BINARY = (double, negate), (add, subtract, maximum)


# How often a step is drawn, where its inputs may be ("": where its result is),
# and where its result may be (none: where its first input is).
STEPS = {
  "aggregate": (3, ["clients"], ["server"]),
  "map one": (2, ["clients server"], []),
  "map two": (2, ["clients", "clients shared"], ["clients"]),
  "map server": (1, ["server", "server"], ["server"]),
  "broadcast": (2, ["server"], ["shared"]),
  "constant": (1, [], ["clients", "server", "shared"]),
  "part": (1, [], ["server", "shared"]),
  "second_of_zip": (1, ["", ""], ["clients", "server"]),
  "select": (1, ["server"], ["clients"]),
  "reduce": (1, [], ["clients"]),
}


@st.composite
def steps(draw, is_float):
  """Draws steps: `(method, positions of values, further arguments)`."""
  # The parameters.
  placements = ["clients", "clients", "server"]
  result = []
  choices = {
    "aggregate": ["sum", "min", "max", "aggregate"]
    + ["mean", "weighted_mean"] * is_float,
    "map one": UNARY,
    "map two": BINARY,
    "map server": BINARY,
    "constant": range(-3, 4),
  }

  def one_of(allowed):
    return draw(
      st.sampled_from(
        [i for i, each in enumerate(placements) if each in allowed]
      )
    )

  for _ in range(draw(st.integers(2, 7))):
    name = draw(
      st.sampled_from(
        [name for name, (often, *_) in STEPS.items() for _ in range(often)]
      )
    )
    _, inputs, outputs = STEPS[name]
    placement = draw(st.sampled_from(outputs)) if outputs else None
    positions = tuple(
      one_of(places.split() or [placement]) for places in inputs
    )
    placement = placement or placements[positions[0]]
    arguments = (placement,) if name in ("constant", "part") else ()
    if name in choices:
      arguments += (draw(st.sampled_from(choices[name])),)
    placements.append(placement)
    result.append((name.split()[0], positions, arguments))
  shown = draw(
    st.lists(
      st.integers(0, len(placements) - 1), min_size=1, max_size=4, unique=True
    )
  )
  # Always what comes last, which depends on most.
  return result, sorted({*shown, len(placements) - 1})


def evaluate(kind, program, arguments):
  """Returns the results of a program's last and other values."""
  first, second, at_server, sequences, keys, struct = arguments
  values = [("clients", first), ("clients", second), ("server", at_server)]
  further, shown = program
  for method, positions, extra in further:
    inputs = [*extra, *(values[position] for position in positions)]
    if method == "select":
      inputs.insert(0, ("clients", keys))
    elif method == "reduce":
      inputs = [("clients", sequences)]
    elif method == "part":
      inputs.append(struct)
    values.append(getattr(kind, method)(*inputs))
  return [values[position][1] for position in shown]


@st.composite
def examples(draw):
  """Draws a program, its type, and two arguments of one computation."""
  dtype = draw(st.sampled_from([np.float32, np.int32]))
  shape = draw(st.sampled_from([(), (2,), (0,)]))
  if shape == (0,) and dtype is np.int32:
    shape = (2, 1)
  program = draw(steps(dtype is np.float32))
  generator = np.random.default_rng(draw(st.integers(0, 2**16)))

  def value(*more):
    return generator.integers(-4, 5, (*more, *shape)).astype(dtype)

  def argument(num_clients):
    return (
      [value() for _ in range(num_clients)],
      [value() for _ in range(num_clients)],
      value(),
      # Lists of elements, some of them empty.
      [list(value(generator.integers(0, 4))) for _ in range(num_clients)],
      [
        generator.integers(0, NUM_KEYS, 2).astype(np.int32)
        for _ in range(num_clients)
      ],
      collections.OrderedDict(a=value(), b=value()),
    )

  sizes = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
  return tff.TensorType(dtype, shape), program, list(map(argument, sizes))


def build(member, program):
  """Returns a function that calls the computation with its arguments."""
  at_clients = tff.FederatedType(member, tff.CLIENTS)
  types = {
    "first": at_clients,
    "second": at_clients,
    "at_server": tff.FederatedType(member, tff.SERVER),
  }
  methods = {method for method, _, _ in program[0]}
  # Without these, computations can run as one function.
  if "reduce" in methods:
    types["sequences"] = tff.FederatedType(
      tff.SequenceType(member), tff.CLIENTS
    )
  if "select" in methods:
    types["keys"] = tff.FederatedType(
      tff.TensorType(np.int32, [2]), tff.CLIENTS
    )
  if "part" in methods:
    types["struct"] = tff.StructType([("a", member), ("b", member)])

  @tff.federated_computation(
    tff.StructWithPythonType(list(types.items()), collections.OrderedDict)
  )
  def computation(argument):
    return tuple(
      evaluate(
        Federated(member),
        program,
        [getattr(argument, name) if name in types else None for name in NAMES],
      )
    )

  def call(argument):
    return computation(
      collections.OrderedDict(
        (name, part)
        for name, part in zip(NAMES, argument, strict=True)
        if name in types
      )
    )

  return call


def check(contexts, example):
  """Compares an example's results in all contexts with NumPy's."""
  member, program, arguments = example
  call = build(member, program)
  oracle = Oracle(member)
  # Twice the first: what was kept from a call must not change another.
  for argument in (arguments[0], arguments[1], arguments[0]):
    oracle.num_clients = len(argument[0])
    expected = evaluate(oracle, program, argument)
    for context in contexts:
      with tff.framework.get_context_stack().install(context):
        found = in_process.to_numpy(call(argument))
      for one, other in zip(found, expected, strict=True):
        assert np.shape(one) == np.shape(other)
        for part in one if isinstance(one, list) else [one]:
          assert part.dtype == member.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)


def settings(max_examples):
  return hypothesis.settings(
    deadline=None,
    max_examples=max_examples,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
  )


@pytest.fixture(scope="module")
def in_process_contexts():
  """Several threads, one thread, and client by client."""
  return [
    in_process.in_process_context(num_threads=4),
    in_process.in_process_context(num_threads=1),
    in_process.in_process_context(num_threads=2, materialize=False),
  ]


@pytest.fixture(scope="module")
def batch_contexts():
  """All clients in one batch, and two in each."""
  return [
    in_process.in_process_context(batch_clients=True, clients_per_batch=number)
    for number in (0, 2)
  ]


@pytest.fixture(scope="module")
def worker_contexts():
  """The C++ executor and two remote workers."""
  with contextlib.ExitStack() as stack:
    addresses = [
      stack.enter_context(local.Worker.start()).address for _ in range(2)
    ]
    workers = execution.RemoteWorkers(addresses)
    yield [
      stack.enter_context(execution.use("local")),
      stack.enter_context(execution.use("remote", remote_workers=workers)),
    ]


@pytest.mark.slow
@settings(12)
@hypothesis.given(examples())
def test_in_process(in_process_contexts, example):
  check(in_process_contexts, example)


@pytest.mark.slow
@settings(12)
@hypothesis.given(examples())
def test_in_batches(batch_contexts, example):
  member, program, arguments = example
  if {"reduce", "select"} & {method for method, _, _ in program[0]}:
    for context in batch_contexts:
      with context, pytest.raises(execution.NotBatchedError):
        build(member, program)(arguments[0])
  else:
    check(batch_contexts, example)


@pytest.mark.cpp
@pytest.mark.long
@settings(40)
@hypothesis.given(examples())
def test_on_workers(in_process_contexts, worker_contexts, example):
  check([*in_process_contexts, *worker_contexts], example)
