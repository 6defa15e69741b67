"""Runs a training on workers for a while, over a bad network, and kills parts.

  python -m benchmarks.soak --minutes=15

Eight processes of `experiments.workers` are reached through proxies with TLS
(`benchmarks.faulty_network`) that delay everything by 50 ms in each direction
and 2 % of it by a retransmission. `experiments.evolving` trains on them, while
connections are broken, workers are cut off for 20 and for 120 seconds (longer
than `--worker_timeout`), workers are killed and started anew, at once or later,
and the driver is killed and resumed. All numbers of the run are compared bit by
bit with those of an undisturbed one of as many rounds, on as many workers.

Prints what happened, the growth of memory, and what is left at the end of
processes, ports and files.
"""

import collections
import contextlib
import dataclasses
import itertools
import os
import pathlib
import random
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import psutil
from absl import app
from absl import flags

from benchmarks import faulty_network
from benchmarks import resume

_ROOT = pathlib.Path(__file__).parents[1]
_TRAINING = (
  "--algorithm=fed_rep",
  "--dataset=circle",
  "--num_domains=4",
  "--max_examples_per_domain=90",
  "--num_clients=16",
  "--local_steps=2",
  "--checkpoint_every=1",
  "--seeds=0",
  "--noprogress",
)
# A driver whose workers are gone ends with it, and can be resumed.
_WORKER_ERROR = 4
_PAUSE_SECONDS = 0.2
_SAMPLING_SECONDS = 2.0
# What a process takes at first, for caches and compiled graphs, is no growth; a
# life that is not twice as long shows none.
_SETTLING_SECONDS = 180.0


@dataclasses.dataclass(frozen=True)
class Settings:
  """How a training is disturbed.

  Attributes:
    num_workers: The number of workers.
    seconds: For how long, from the first round. The rounds in hand are then
      finished, undisturbed.
    faults: What happens, in turn: a name of `_Soak.faults` and its seconds.
    repeat: Whether they are repeated until time is up.
    pause: Seconds between two faults.
    rounds: The rounds by which the training is extended until time is up.
    delay: Seconds that the network takes, each way.
    late: The fraction of chunks that come as after a loss.
    worker_timeout: Seconds until a silent worker is lost.
    tls: Whether the proxies end TLS, with certificates of the driver.
  """

  num_workers: int = 8
  seconds: float = 15 * 60
  faults: Sequence[tuple[str, float]] = (
    ("reset", 0),
    ("restart worker", 1),
    ("cut off", 20),
    ("kill driver", 60),
    ("reset", 0),
    ("cut off", 120),
    ("restart worker", 60),
    ("kill driver", 60),
  )
  repeat: bool = True
  pause: float = 10.0
  rounds: int = 100
  delay: float = 0.05
  late: float = 0.02
  worker_timeout: float = 30.0
  tls: bool = True


class _Worker:
  """A process of `experiments.workers` with one worker.

  Attributes:
    pid: The process id of TFF's worker.
    port: Its port, the same after `start`.
  """

  def __init__(self, folder: pathlib.Path):
    self._folder, self.pid, self.port = folder, None, 0
    self._process: subprocess.Popen | None = None

  def start(self) -> None:
    """Starts the process, and waits until it is ready."""
    self._process = subprocess.Popen(
      [
        *(sys.executable, "-m", "experiments.workers"),
        *("--num_workers=1", f"--port={self.port}"),
      ],
      cwd=_ROOT,
      env=os.environ | {"TMPDIR": str(self._folder)},
      stdout=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )
    line = self._process.stdout.readline()
    if not line:
      raise RuntimeError(f"no worker: exit code {self._process.wait()}")
    self.port = int(line.rpartition(":")[2])

  def find(self) -> psutil.Process | None:
    """Returns the process of TFF's worker, if it runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
      for child in psutil.Process(self._process.pid).children(recursive=True):
        if child.name() == "worker_binary":
          return child
    return None

  def end(self, how: int = signal.SIGTERM) -> None:
    """Ends the process with a signal, and waits for all that belongs to it."""
    try:
      others = psutil.Process(self._process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
      others = []
    self._process.send_signal(how)
    self._process.wait()
    self._process.stdout.close()
    _, alive = psutil.wait_procs(others, timeout=30)
    if alive:
      raise RuntimeError(f"still there after its parent: {alive}")


class _Driver:
  """The process of the training, and those that resume it."""

  def __init__(self, arguments: Sequence[str], folder: pathlib.Path):
    self._arguments, self._folder = arguments, folder
    self.process = None

  def num_rows(self) -> int:
    """Returns the number of rows of the training's metrics."""
    return resume.num_rows(self._folder / "run")

  def start(self, rounds: int) -> None:
    """Starts or resumes the training."""
    is_there = (self._folder / "run" / "metrics.csv").exists()
    with (self._folder / "log").open("a") as log:
      self.process = subprocess.Popen(
        [
          *(sys.executable, "-m", "experiments.evolving", *self._arguments),
          *(f"--rounds={rounds}", f"--output_dir={self._folder / 'run'}"),
          *["--resume"] * is_there,
        ],
        cwd=_ROOT,
        env=os.environ | {"TMPDIR": str(self._folder / "tmp")},
        stdout=log,
        stderr=log,
        start_new_session=True,
      )

  def kill(self) -> None:
    """Kills the process and all its children."""
    if self.process is not None and self.process.poll() is None:
      os.killpg(self.process.pid, signal.SIGKILL)
      self.process.wait()


class Lives(NamedTuple):
  """The memory of a process and of those that took its place.

  Attributes:
    peaks: The largest resident MiB of each.
    longest: The seconds of the longest life.
    growth: The MiB per hour in it, without its first minutes; NaN if it was
      shorter than twice as long.
  """

  peaks: list[float]
  longest: float
  growth: float


class _Memory(threading.Thread):
  """Samples the resident size of processes.

  Attributes:
    samples: (seconds, MiB) by name and pid.
    largest_sum: The largest sum of the workers' MiB.
  """

  def __init__(self, workers: Sequence[_Worker], driver: _Driver):
    super().__init__(name="memory")
    self._workers, self._driver = workers, driver
    self._end = threading.Event()
    self.samples = collections.defaultdict(list)
    self.largest_sum = 0.0

  def run(self):
    while not self._end.wait(_SAMPLING_SECONDS):
      total = 0.0
      for number, worker in enumerate(self._workers):
        total += self._sample(f"worker {number + 1}", worker.find())
      self.largest_sum = max(self.largest_sum, total)
      if (process := self._driver.process) is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
          self._sample("driver", psutil.Process(process.pid))

  def _sample(self, name: str, process: psutil.Process | None) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
      if process is not None:
        size = process.memory_info().rss / 2**20
        if size:
          self.samples[name, process.pid].append((time.monotonic(), size))
        return size
    return 0.0

  def stop(self):
    self._end.set()
    self.join()

  def lives(self) -> dict[str, Lives]:
    """Returns the sizes of each process and its successors, by name."""
    found = collections.defaultdict(list)
    for (name, _), samples in self.samples.items():
      found[name].append(np.transpose(samples))
    lives = {}
    for name, all_samples in sorted(found.items()):
      seconds, sizes = max(all_samples, key=lambda each: np.ptp(each[0]))
      late = seconds > seconds[0] + _SETTLING_SECONDS
      slope = np.nan
      if np.ptp(seconds) > 2 * _SETTLING_SECONDS:
        slope, _ = np.polyfit(seconds[late], sizes[late], 1)
      lives[name] = Lives(
        [each[1].max() for each in all_samples], np.ptp(seconds), 3600 * slope
      )
    return lives


@dataclasses.dataclass
class Result:
  """What a soak found.

  Attributes:
    rounds: The rounds of the training.
    seconds: How long they took.
    counts: How often each fault happened, and the driver ended with an error of
      its workers.
    differences: The outputs that differ from an undisturbed run's.
    left: Processes, ports and files that are left.
    lives: The memory of each process, by name.
    workers_mib: The largest sum of the workers' resident MiB.
  """

  rounds: int
  seconds: float
  counts: collections.Counter
  differences: list[str]
  left: list[str]
  lives: dict[str, Lives]
  workers_mib: float


class _Soak:
  """A training that is disturbed."""

  def __init__(self, settings, workers, network, driver):
    self._settings = settings
    self._workers, self._network, self._driver = workers, network, driver
    self._random = random.Random(0)
    self.counts = collections.Counter()
    self.faults = {
      "reset": self._reset,
      "cut off": self._cut_off,
      "restart worker": self._restart_worker,
      "kill driver": self._kill_driver,
    }

  def run(self) -> int:
    """Trains until the time is up; returns the number of rounds."""
    settings = self._settings
    rounds = settings.rounds
    over = threading.Event()
    self._driver.start(rounds)
    errors = []

    def disturb():
      try:
        while not self._driver.num_rows():
          if over.wait(_PAUSE_SECONDS):
            return
        end = time.monotonic() + settings.seconds
        repeat = itertools.cycle if settings.repeat else iter
        for name, seconds in repeat(settings.faults):
          if over.wait(settings.pause) or time.monotonic() > end:
            return
          self.faults[name](seconds)
          self.counts[f"{name}, {seconds:g} s"] += 1
      except Exception as error:
        errors.append(error)

    disturber = threading.Thread(target=disturb, name="faults")
    disturber.start()
    try:
      while not errors:
        code = self._driver.process.poll()
        if code == 0:
          if not disturber.is_alive():
            return rounds
          rounds += settings.rounds
          self._driver.start(rounds)
        elif code == -signal.SIGKILL:
          self._driver.start(rounds)
        elif code == _WORKER_ERROR:
          self.counts["driver ended without workers"] += 1
          self._driver.start(rounds)
        elif code is not None:
          raise RuntimeError(f"the driver ended with {code}; see its log")
        time.sleep(_PAUSE_SECONDS)
      raise errors[0]
    finally:
      over.set()
      disturber.join()

  def _victim(self) -> int:
    return self._random.randrange(len(self._workers))

  def _reset(self, seconds: float) -> None:
    self._network.reset(self._victim())
    time.sleep(seconds)

  def _cut_off(self, seconds: float) -> None:
    victim = self._victim()
    self._network.disconnect(victim)
    time.sleep(seconds)
    self._network.connect(victim)

  def _restart_worker(self, seconds: float) -> None:
    worker = self._workers[self._victim()]
    worker.end(signal.SIGKILL)
    time.sleep(seconds)
    worker.start()

  def _kill_driver(self, seconds: float) -> None:
    # It may just have ended by itself.
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._driver.process.pid, signal.SIGKILL)
    # Its successor needs all workers at its start.
    time.sleep(seconds)


def _tls(folder: pathlib.Path) -> tuple[ssl.SSLContext, list[str]]:
  """Makes certificates; returns the proxies' side, and the driver's flags."""
  subprocess.run(
    [str(_ROOT / "deploy" / "certificates.sh"), str(folder), "localhost"],
    check=True,
    stderr=subprocess.DEVNULL,
  )
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  context.load_cert_chain(folder / "server.crt", folder / "server.key")
  context.set_alpn_protocols(["h2"])
  context.verify_mode = ssl.CERT_REQUIRED
  context.load_verify_locations(folder / "authority.crt")
  return context, [
    f"--worker_certificate={folder / 'authority.crt'}",
    f"--worker_client_certificate={folder / 'client.crt'}",
    f"--worker_client_key={folder / 'client.key'}",
  ]


def run(settings: Settings) -> Result:
  """Disturbs a training and compares it with an undisturbed one."""
  before = psutil.Process().children(recursive=True)
  with contextlib.ExitStack() as stack:
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for name in ("disturbed/tmp", "whole/tmp", "workers"):
      (folder / name).mkdir(parents=True)
    with contextlib.ExitStack() as running:
      workers = [
        _Worker(folder / "workers") for _ in range(settings.num_workers)
      ]
      for worker in workers:
        worker.start()
        running.callback(worker.end)
      tls, tls_flags = None, []
      if settings.tls:
        tls, tls_flags = _tls(folder / "certificates")
      ports = [worker.port for worker in workers]
      network = running.enter_context(
        faulty_network.Network(
          ports, delay=settings.delay, late=settings.late, tls=tls
        )
      )

      def driver(name, addresses, *more):
        made = _Driver(
          [
            *(*_TRAINING, "--executor=remote", *more),
            f"--workers={','.join(addresses)}",
            f"--worker_timeout={settings.worker_timeout}",
          ],
          folder / name,
        )
        running.callback(made.kill)
        return made

      disturbed = driver("disturbed", network.addresses, *tls_flags)
      memory = _Memory(workers, disturbed)
      memory.start()
      running.callback(memory.stop)
      soak = _Soak(settings, workers, network, disturbed)
      start = time.monotonic()
      try:
        rounds = soak.run()
      except RuntimeError:
        print((folder / "disturbed" / "log").read_text(), file=sys.stderr)
        raise
      seconds = time.monotonic() - start
      whole = driver("whole", [f"127.0.0.1:{port}" for port in ports])
      whole.start(rounds)
      if whole.process.wait() != 0:
        raise RuntimeError((folder / "whole" / "log").read_text())
      proxies = [int(each.rpartition(":")[2]) for each in network.addresses]
    differences = resume.differences(
      folder / "whole" / "run", folder / "disturbed" / "run"
    )
    left = [
      f"process {each.pid} {each.name()}"
      for each in psutil.Process().children(recursive=True)
      if each not in before
    ]
    for port in (*ports, *proxies):
      try:
        socket.create_server(("127.0.0.1", port)).close()
      except OSError as error:
        left.append(f"port {port}: {error.strerror}")
    for name in ("disturbed/tmp", "whole/tmp", "workers"):
      left += [f"file {path}" for path in (folder / name).rglob("*")]
  return Result(
    rounds=rounds,
    seconds=seconds,
    counts=soak.counts,
    differences=differences,
    left=left,
    lives=memory.lives(),
    workers_mib=memory.largest_sum,
  )


def main(_) -> None:
  """Prints the tables."""
  # All processes end with this one.
  signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
  settings = Settings(
    num_workers=flags.FLAGS.num_workers,
    seconds=60 * flags.FLAGS.minutes,
    pause=flags.FLAGS.pause,
  )
  result = run(settings)
  print(
    f"{settings.num_workers} workers, {result.rounds} rounds,"
    f" {result.seconds / 60:.1f} minutes\n\n| fault | times |\n| --- | --- |"
  )
  for name, count in result.counts.items():
    print(f"| {name} | {count} |")
  print(f"\ndifferent outputs: {', '.join(result.differences) or 'none'}")
  print(f"left at the end: {', '.join(result.left) or 'nothing'}")
  print(f"workers together: at most {result.workers_mib:.0f} MiB\n")
  print("| process | lives | peak MiB | longest, s | MiB per hour in it |")
  print("| --- | --- | --- | --- | --- |")
  for name, (peaks, longest, growth) in result.lives.items():
    listed = ", ".join(f"{each:.0f}" for each in peaks)
    print(
      f"| {name} | {len(peaks)} | {listed} | {longest:.0f} | {growth:+.1f} |"
    )
  sys.exit(bool(result.differences or result.left))


if __name__ == "__main__":
  flags.DEFINE_float("minutes", 15, "For how long.", lower_bound=0)
  flags.DEFINE_integer("num_workers", 8, "Workers.", lower_bound=1)
  flags.DEFINE_float("pause", 10, "Seconds between two faults.", lower_bound=0)
  app.run(main)
