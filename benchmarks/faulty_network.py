"""A TCP proxy on this machine that delays, stalls, breaks and counts.

    with faulty_network.Network([worker.port], delay=0.05) as network:
      network.addresses  # In place of the worker's own address.
      network.disconnect(0)
      network.reset(0)

A proxy of connections cannot lose a packet: TCP would send it again, later.
Therefore a fraction of the chunks comes as late as after such a loss. A
disconnected link loses nothing either: what was sent arrives when it is
connected again, as from a network that was away for less than the senders'
patience.
"""

import asyncio
import contextlib
import random
import ssl
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

# What Linux waits at least until it sends a lost packet again.
_RETRANSMISSION_SECONDS = 0.2
_CHUNK = 65536


class _Link:
  """The connections to one server.

  Attributes:
    sent: The bytes from clients to the server.
    received: The bytes from the server to clients.
  """

  def __init__(self, port: int, delay: float, late: float, seed: int):
    self.sent = self.received = 0
    self.connected = asyncio.Event()
    self.connected.set()
    self._port, self._delay, self._late = port, delay, late
    self._random = random.Random(seed)
    self._writers = set()

  def reset(self) -> None:
    """Breaks all connections."""
    for writer in list(self._writers):
      writer.transport.abort()

  async def serve(self, reader, writer) -> None:
    """Passes a connection on until one side closes it."""
    # It is cancelled with the network.
    with contextlib.suppress(OSError, asyncio.CancelledError):
      self._writers.add(writer)
      await self.connected.wait()
      to_server = None
      try:
        from_server, to_server = await asyncio.open_connection(
          "127.0.0.1", self._port
        )
        self._writers.add(to_server)
        copies = [
          asyncio.create_task(self._copy(reader, to_server, "sent")),
          asyncio.create_task(self._copy(from_server, writer, "received")),
        ]
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        for copy in copies:
          copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
      finally:
        for each in (writer, to_server):
          if each is not None:
            self._writers.discard(each)
            each.transport.abort()

  async def _copy(self, reader, writer, counter: str) -> None:
    """Passes on what comes in one direction, in order and in time."""
    queue = asyncio.Queue(1024)
    loop = asyncio.get_running_loop()

    async def receive():
      due = 0.0
      with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
          is_late = self._random.random() < self._late
          wait = self._delay + is_late * _RETRANSMISSION_SECONDS
          due = max(due, loop.time() + wait)
          await queue.put((due, data))
      await queue.put((due, b""))

    receiving = asyncio.create_task(receive())
    try:
      while True:
        due, data = await queue.get()
        await asyncio.sleep(due - loop.time())
        await self.connected.wait()
        if not data:
          return
        writer.write(data)
        setattr(self, counter, getattr(self, counter) + len(data))
        await writer.drain()
    finally:
      receiving.cancel()
      await asyncio.gather(receiving, return_exceptions=True)


class Network(contextlib.AbstractContextManager):
  """Proxies before servers, in a thread of their own.

  Attributes:
    addresses: The `host:port` of each proxy, in the order of the servers.
  """

  def __init__(
    self,
    ports: Sequence[int],
    *,
    delay: float = 0.0,
    late: float = 0.0,
    tls: ssl.SSLContext | None = None,
    seed: int = 0,
  ):
    """Starts the proxies.

    Args:
      ports: The servers' ports on this machine.
      delay: Seconds that everything takes in each direction.
      late: The fraction of chunks that are as late as after a lost packet.
      tls: The proxies' side of TLS, which ends there; None: no encryption.
      seed: Decides which chunks are late.
    """
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(target=self._loop.run_forever)
    self._thread.start()

    async def start():
      self._links = [
        _Link(port, delay, late, seed + position)
        for position, port in enumerate(ports)
      ]
      return [
        await asyncio.start_server(link.serve, "127.0.0.1", 0, ssl=tls)
        for link in self._links
      ]

    self._servers = self._wait(start())
    host = "127.0.0.1" if tls is None else "localhost"
    self.addresses = [
      f"{host}:{server.sockets[0].getsockname()[1]}" for server in self._servers
    ]

  def _wait(self, coroutine) -> Any:
    return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

  def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
    async def call():
      return function(*arguments)

    return self._wait(call())

  def disconnect(self, position: int) -> None:
    """Holds back everything of a link until `connect`."""
    self._call(self._links[position].connected.clear)

  def connect(self, position: int) -> None:
    """Ends `disconnect`."""
    self._call(self._links[position].connected.set)

  def reset(self, position: int) -> None:
    """Breaks the connections of a link; new ones are accepted."""
    self._call(self._links[position].reset)

  def count_bytes(self) -> tuple[int, int]:
    """Returns the bytes passed to and from the servers, without TLS's own."""
    return tuple(
      sum(getattr(link, name) for link in self._links)
      for name in ("sent", "received")
    )

  def __exit__(self, *exception_details: object) -> None:
    async def stop():
      for server in self._servers:
        server.close()
      tasks = asyncio.all_tasks() - {asyncio.current_task()}
      for task in tasks:
        task.cancel()
      await asyncio.gather(*tasks, return_exceptions=True)

    self._wait(stop())
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    self._loop.close()
