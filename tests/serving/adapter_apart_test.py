"""Tests of `ts.AdapterClient` and `ts.AdapterServer`: the bits of `ts.Adapter`.

Messages and broadcasts are passed as bytes, as between processes.
"""

import dataclasses
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_shift as ts
from tests.fixtures import refusals
from tests.fixtures import tables
from tests.fixtures import trees
from tests.serving import adapter_test
from tff_shift._util import errors
from tff_shift.learning import phases

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]

_ROOT = pathlib.Path(__file__).parents[2]
NAMES = adapter_test.NAMES
draw = adapter_test.draw
X = draw(5, 1).x


def open_server(algorithm, folder, **options):
  options = {"client_names": NAMES, "seed": 5, **options}
  return ts.AdapterServer(algorithm, folder / "server", **options)


def open_client(algorithm, folder, position, **options):
  deployment = adapter_test.DEPLOYMENT
  return ts.AdapterClient(
    algorithm,
    deployment._replace(initial=[deployment.initial[position]]),
    folder / f"client_{position}",
    **{"client": position, "seed": 5, **options},
  )


class Apart:
  """A server and its clients, which know each other by bytes alone."""

  def __init__(self, algorithm, folder, **options):
    self.server = open_server(algorithm, folder, **options)
    self.clients = {
      name: open_client(algorithm, folder, client)
      for client, name in enumerate(NAMES)
    }

  def adapt(self, batches):
    broadcast = self.server.begin(list(batches))
    first = dict(batches)
    while broadcast.clients:
      broadcast = self.server.receive(
        {
          name: self.clients[name]
          .receive(broadcast.to_bytes(), first.pop(name, None))
          .to_bytes()
          for name in self.server.asked
        }
      )
    # The weights of the end, to predict with.
    for name, client in self.clients.items():
      client.receive(broadcast.to_bytes(), first.pop(name, None))


def assert_same(apart, adapter):
  """The states of server and clients, and predictions, bit for bit."""
  running = adapter._rounds
  assert trees.bits(apart.server._state) == trees.bits(running.server_state)
  x = adapter_test.draw(4, 9).x
  for client, name in enumerate(NAMES):
    found = apart.clients[name]
    assert trees.bits(found._own_state()) == trees.bits(running.states[client])
    assert trees.bits(found.predict(x)) == trees.bits(adapter.predict(name, x))


@pytest.fixture(scope="module")
def algorithm():
  return adapter_test.build()


@pytest.mark.long
@pytest.mark.parametrize(
  "options", [{}, {"rounds_per_step": 2, "participation": 0.5}]
)
def test_clients_apart_have_the_bits_of_one_process(
  algorithm, tmp_path, options
):
  apart = Apart(algorithm, tmp_path, **options)
  adapter = adapter_test.open_adapter(algorithm, tmp_path / "whole", **options)
  assert_same(apart, adapter)
  for timestep in range(1, adapter_test.NUM_STEPS + 1):
    batches = adapter_test.by_name(timestep)
    apart.adapt(batches)
    adapted = adapter.adapt(batches)
    assert_same(apart, adapter)
    assert apart.server.loss == adapted.loss
    assert apart.server.timestep == adapter.timestep
  for name, rate in adapter.learning_rates.items():
    np.testing.assert_array_equal(apart.clients[name].learning_rate, rate)


@pytest.mark.parametrize("name", adapter_test.METHODS)
@pytest.mark.every_algorithm
def test_every_method_of_streams_runs_apart(name, tmp_path):
  algorithm = adapter_test.build(name, adapter_test.normalized_model())
  apart = Apart(algorithm, tmp_path)
  adapter = adapter_test.open_adapter(algorithm, tmp_path / "whole")
  for timestep in (1, 2):
    batches = adapter_test.by_name(timestep)
    apart.adapt(batches)
    adapter.adapt(batches)
  assert_same(apart, adapter)
  adapter.save()
  assert np.isfinite(adapter.predict("west", draw(4, 0).x).probabilities).all()


# A program of a client, which reads broadcasts and batches as they come, and
# writes messages; one of the server, which writes and reads the same files.
_CLIENT = """
import pathlib, sys
from tests.serving import adapter_apart_test as t
folder, client = pathlib.Path(sys.argv[1]), int(sys.argv[2])
with t.ts.execution.use("in_process"):
  algorithm = t.adapter_test.build()
  one = t.open_client(algorithm, folder, client)
  for name in t.broadcasts(folder):
    broadcast = t.wait_for(folder / name)
    timestep = int(name.split("_")[1])
    batches = t.adapter_test.by_name(timestep)
    x = batches.get(t.NAMES[client]) if name.endswith("_0") else None
    message = one.receive(broadcast, x)
    if message is not None:
      t.write(folder / f"{name}_{client}", message.to_bytes())
    if name == "step_2_0":
      # In the middle of a round, the process ends and goes on.
      one.save()
      one.close()
      one = t.open_client(algorithm, folder, client)
  one.save()
"""
_SERVER = """
import pathlib, sys
from tests.serving import adapter_apart_test as t
folder = pathlib.Path(sys.argv[1])
with t.ts.execution.use("in_process"):
  algorithm = t.adapter_test.build()
  server = t.open_server(algorithm, folder)
  for timestep in (1, 2):
    broadcast = server.begin(list(t.adapter_test.by_name(timestep)))
    for number in range(3):
      name = f"step_{timestep}_{number}"
      t.write(folder / name, broadcast.to_bytes())
      if server.asked:
        broadcast = server.receive({
          each: t.wait_for(folder / f"{name}_{t.NAMES.index(each)}")
          for each in server.asked
        })
    server.save()
    server.close()
    server = t.open_server(algorithm, folder)
"""


def broadcasts(folder):
  """The names of the files, two phases and the end of each of two steps."""
  return [f"step_{step}_{number}" for step in (1, 2) for number in range(3)]


def write(path, content):
  path.with_suffix(".new").write_bytes(content)
  path.with_suffix(".new").rename(path)


def wait_for(path):
  for _ in range(5000):
    if path.exists():
      return path.read_bytes()
    time.sleep(0.05)
  raise TimeoutError(path)


@pytest.mark.long
def test_processes_that_exchange_bytes_have_the_bits_of_one(
  algorithm, tmp_path
):
  """A server and three clients, each a process with its own folder."""
  environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
  programs = [[_SERVER, tmp_path]]
  programs += [[_CLIENT, tmp_path, str(client)] for client in range(3)]
  running = [
    subprocess.Popen(
      [sys.executable, "-c", *program], cwd=_ROOT, env=environment
    )
    for program in programs
  ]
  try:
    assert [each.wait(timeout=400) for each in running] == [0] * 4
  finally:
    for each in running:
      each.kill()
      each.wait()
  adapter = adapter_test.open_adapter(algorithm, tmp_path / "whole")
  for timestep in (1, 2):
    adapter.adapt(adapter_test.by_name(timestep))
  assert_same(Apart(algorithm, tmp_path), adapter)


@pytest.mark.long
def test_halves_run_in_tffs_executor(algorithm, tmp_path):
  found = []
  for executor in ("in_process", "local"):
    with ts.execution.use(executor):
      apart = Apart(algorithm, tmp_path / executor)
      apart.adapt(adapter_test.by_name(1))
      states = [client._state for client in apart.clients.values()]
      found.append((apart.server._state, states))
  trees.assert_close(*found, 1e-5, 1e-6)


def test_server_goes_on_within_a_round(algorithm, tmp_path):
  first = open_server(algorithm, tmp_path)
  client = open_client(algorithm, tmp_path, 2)
  message = client.receive(first.begin(["west"]), X)
  first.receive({"west": message})
  first.save()
  first.close()
  second = open_server(algorithm, tmp_path)
  assert second.broadcast.to_bytes() == first.broadcast.to_bytes()
  assert second.asked == ("west",)
  answer = client.receive(second.broadcast)
  for server in (first, second):
    server.receive({"west": answer})
  assert trees.bits(first._state) == trees.bits(second._state)


class TestMessages:
  """What a server and a client refuse, and that they then stay as they were."""

  @pytest.fixture
  def apart(self, algorithm, tmp_path):
    return Apart(algorithm, tmp_path)

  def refused(self, call, *given, match):
    one = call.__self__
    before = trees.bits(self.state(one))
    with refusals.refused(match):
      call(*given)
    assert trees.bits(self.state(one)) == before

  def state(self, one):
    return [
      value
      for name, value in sorted(vars(one).items())
      if name in ("_state", "_received", "_timestep", "_round_num", "_batch")
    ]

  def test_message_has_the_type_of_what_leaves_a_client(self, algorithm, apart):
    broadcast = apart.server.begin(["north"])
    message = apart.clients["north"].receive(broadcast, X)
    assert message.type == apart.server.message_types[0]
    at_clients = algorithm.server_halves[0].type_signature.parameter[1]
    assert at_clients == tff.FederatedType(message.type, tff.CLIENTS)
    # All that the server averages, and nothing of a size that data have.
    names = tff.structure.name_list(message.type)
    assert names == list(phases.Message._fields)
    assert message.type.compact_representation() in repr(message)
    assert "?" not in repr(message)

  def test_order_of_rounds_is_checked(self, apart):
    north = apart.clients["north"]
    first = apart.server.begin(["north", "south"])
    self.refused(north.receive, first, match="needs its batch x")
    message = north.receive(first, X)
    self.refused(north.receive, first, match="has already received")
    south = apart.clients["south"].receive(first, X)
    server = apart.server
    self.refused(server.begin, ["west"], match="has not ended: .*south")
    second = server.receive({"north": message, "south": south})
    self.refused(north.receive, second, X, match="already has its batch")
    self.refused(
      apart.clients["west"].receive,
      dataclasses.replace(second, clients=(2,)),
      X,
      match="has not sent a message in phase 0",
    )
    self.refused(
      server.receive, {"north": message}, match="has phase=0, and the"
    )
    self.refused(
      server.receive, {"west": message}, match="is not awaited in round"
    )
    answer = north.receive(second)
    self.refused(
      server.receive, {"south": answer}, match="sent by the client at"
    )
    self.refused(server.receive, {"norht": answer}, match="did you mean north")
    # The other client does not answer.
    assert not server.receive({"north": answer}).clients
    self.refused(server.receive, {}, match="no message is awaited")

  def test_damaged_and_foreign_packets_are_refused(
    self, algorithm, apart, tmp_path
  ):
    server, north = apart.server, apart.clients["north"]
    broadcast = server.begin(["north"])
    content = broadcast.to_bytes()
    damaged = content[:-1] + bytes([content[-1] ^ 1])
    for given, match in (
      (damaged, r"is damaged \(its content has changed"),
      (content[:-4], "is damaged"),
      (b"", "is damaged"),
      (7, "must be a Broadcast or its bytes, got a int"),
      (dataclasses.replace(broadcast, phase=2), "a round has phases 0 to 1"),
      (
        dataclasses.replace(
          broadcast,
          value=broadcast.value._replace(round_num=np.float32(0)),
        ),
        "has values of another type",
      ),
    ):
      self.refused(north.receive, given, X, match=match)
    message = north.receive(broadcast, X)
    self.refused(
      server.receive,
      {"north": content},
      match="must be a Message or its bytes, got a Broadcast",
    )
    other = open_client(algorithm, tmp_path / "other", 0, seed=6)
    self.refused(
      other.receive,
      content,
      X,
      match="is of another algorithm, deployed model or seed",
    )
    assert server.receive({"north": message}).clients == (0,)

  def test_invalid_fields_are_refused(self, apart):
    server, north = apart.server, apart.clients["north"]
    broadcast = server.begin(["north", "south"])
    value = broadcast.value
    infinite = tf.nest.map_structure(lambda leaf: leaf * np.inf, value.weights)
    for changes, match in (
      ({"value": value._replace(weights=infinite)}, "weights that are not fin"),
      *tables.cases(r"""
{"round_num": 9007199254740992}
    round_num
{"round_num": 1}
    is of round 1, and its state is of round 0
{"round_num": -1}
    >= 0 - at .*round_num
{"timestep": 1.5}
    `int`, got `float` - at `\$.timestep
{"timestep": 2}
    time step 2 in round 0; every time step has a round
{"timestep": 0}
    no time step has begun
{"clients": (1, 0)}
    must be different and ascending
{"clients": (0, 0)}
    must be different and ascending
{"clients": None}
    clients
{"clients": (2147483648,)}
    clients
{"clients": (), "phase": 1}
    asks no client in phase 1
{"key": 3}
    another algorithm, deployed model or seed
{"value": None}
    has values of another type
"""),
    ):
      changed = dataclasses.replace(broadcast, **changes)
      self.refused(north.receive, changed, X, match=match)
    message = north.receive(broadcast, X)
    other = apart.clients["south"].receive(broadcast, X)
    value = message.value
    infinite = tf.nest.map_structure(lambda leaf: leaf + np.inf, value.update)

    def with_value(name, number):
      number = np.float32(number)
      if name in value.report:
        number = type(value.report)({**value.report, name: number})
        name = "report"
      return {"value": value._replace(**{name: number})}

    for changes, match in (
      ({"value": value._replace(update=infinite)}, "has update that is not"),
      *tables.cases("""
{"clients": ()}
    was sent by the client at position none
{"clients": (0, 1)}
    was sent by the client at position 0, 1
{"timestep": 2}
    has timestep=2, and the server is at timestep=1
("weight", "nan")
    has weight that
("weight", -1)
    has weight -1.0 and
("has_weight", 9)
    has_weight 9.0
("counts", 1e9)
    has counts 1000000000.0; it is 0 or 1
("diverged", "nan")
    has diverged nan; it is 0 or 1
"""),
    ):
      if isinstance(changes, tuple):
        changes = with_value(*changes)
      changed = dataclasses.replace(message, **changes)
      self.refused(
        server.receive,
        {"north": changed, "south": other},
        match=f"the message of client 'north'.*{match}",
      )
    # Finite numbers whose mean is not.
    large = tf.nest.map_structure(
      lambda leaf: np.full_like(leaf, 3e38), value.update
    )
    self.refused(
      server.receive,
      {
        name: dataclasses.replace(
          each,
          value=each.value._replace(update=large, weight=np.float32(3e38)),
        )
        for name, each in (("north", message), ("south", other))
      },
      match="the messages of 'north', 'south' give weights that are not finite",
    )
    assert server.receive({"north": message, "south": other}).clients == (0, 1)

  @pytest.mark.parametrize(
    "x, match",
    [
      (X * np.nan, "the batch of client 0"),
      (X[:0], "has no examples; leave x out"),
    ],
  )
  def test_bad_batches_are_refused(self, apart, x, match):
    broadcast = apart.server.begin(["north"])
    north = apart.clients["north"]
    self.refused(north.receive, broadcast, x, match=match)
    self.refused(
      north.receive,
      dataclasses.replace(broadcast, timestep=0),
      x,
      match="no time step has begun",
    )
    assert north.receive(broadcast, draw(3, 1).x) is not None

  def test_round_without_messages_ends(self, apart):
    before = trees.bits(apart.server._state.weights)
    broadcast = apart.server.begin(["north"])
    apart.clients["north"].receive(broadcast, draw(3, 1).x)
    assert apart.server.receive({}).clients == ()
    assert trees.bits(apart.server._state.weights) == before
    assert apart.server.begin(["north"]).round_num == 1

  def test_round_in_which_all_diverge_is_not_taken(self, apart):
    broadcast = apart.server.begin(["north"])
    message = apart.clients["north"].receive(broadcast, draw(3, 1).x)
    report = {**message.value.report, "diverged": np.float32(1)}
    message.value.report.update(report)
    with pytest.raises(errors.DivergedError):
      apart.server.receive({"north": message})
    assert apart.server.broadcast.phase == 0
    assert apart.server.asked == ("north",)


def test_state_of_another_client_is_refused(algorithm, tmp_path):
  client = open_client(algorithm, tmp_path, 0)
  client.receive(open_server(algorithm, tmp_path).broadcast)
  client.save()
  client.close()
  with refusals.refused("client was 0, and is 1"):
    open_client(algorithm, tmp_path, 0, client=1)


def test_arguments_are_checked(algorithm, tmp_path):
  for names, options, match in (
    (("a", "a"), {}, "client_names must be different"),
    ((), {}, "client_names must have an entry"),
    (NAMES, {"participation": 0}, "participation"),
  ):
    with refusals.refused(match):
      open_server(algorithm, tmp_path, client_names=names, **options)
  with refusals.refused("client"):
    open_client(algorithm, tmp_path, 0, client=-1)
  with refusals.refused(r"deployment\.initial"):
    ts.AdapterClient(algorithm, adapter_test.DEPLOYMENT, tmp_path, client=0)


def test_aggregators_that_hide_clients_need_one_process(tmp_path):
  algorithm = ts.build_algorithm(
    "fed_ade",
    adapter_test.normalized_model(),
    ts.hparams("fed_ade", client_weighting="uniform"),
    aggregator=ts.build_aggregator("secure"),
  )
  with refusals.refused(r"hides single updates: .* ts\.Adapter"):
    open_server(algorithm, tmp_path)
  with refusals.refused("hides single updates"):
    open_client(algorithm, tmp_path, 0)


def test_names_of_a_saved_server_come_first(algorithm, tmp_path):
  with open_server(algorithm, tmp_path, client_names=NAMES[:2]) as server:
    server.save()
  with open_server(algorithm, tmp_path) as server:
    assert server.begin(["west"]).clients == (2,)
  for names in (NAMES[::-1], NAMES[:1]):
    with refusals.refused("must begin with the saved ones, 'no"):
      open_server(algorithm, tmp_path, client_names=names)
