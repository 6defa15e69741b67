"""The files of deploy/, as far as one machine can run them."""

import contextlib
import importlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow_federated as tff
import yaml

from experiments import reproduce
from tff_shift import execution
from tff_shift.command_line.flags import preset_flag
from tff_shift.execution import local

_DEPLOY = pathlib.Path(__file__).parents[2] / "deploy"
_COMPOSE = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())
_SERVICES = _COMPOSE["services"]
_TABLE = """
name = "mine/1"
title = "Mine"
binary = "evolving"
seeds = [0]
[ours]
datasets = ["circle"]
methods = ["fed_avg", "fed_rep"]
metrics = ["accuracy"]
settings.evaluated = ["client"]
[settings.evaluated]
[datasets.circle]
flags = { model = "mlp", model_width = 4, num_clients = 2, num_domains = 4, max_examples_per_domain = 40, rounds = 200, local_steps = 1, learning_rate = 0.1, evaluate_every = 50, checkpoint_every = 1 }
[methods.fed_avg]
label = "FedAvg"
algorithm = "fed_avg"
[methods.fed_rep]
label = "FedRep"
algorithm = "fed_rep"
[metrics.accuracy]
label = "accuracy"
reads = "{evaluated}_accuracy"
"""  # noqa: E501 (an inline table has one line)


_REPRODUCE = ["python", "-m", "experiments.reproduce"]


def _manifests(name):
  text = (_DEPLOY / "kubernetes" / name).read_text()
  return {
    (each["kind"], each["metadata"]["name"]): each
    for each in yaml.safe_load_all(text)
  }


_WORKERS, _GRID, _PAGE = map(
  _manifests, ("workers.yaml", "grid.yaml", "page.yaml")
)
_MANIFESTS = _WORKERS | _GRID | _PAGE


def _pod(manifest):
  return manifest["spec"]["template"]["spec"]


def _container(manifest):
  (found,) = _pod(manifest)["containers"]
  return found


def _planned(manifest):
  """The command of a script whose output goes to a file."""
  (script,) = _container(manifest)["args"]
  return shlex.split(script.partition(">")[0])


def _commands():
  """The command lines of all containers."""
  for name, service in _SERVICES.items():
    if "command" in service:
      yield pytest.param(service["command"], id=name)
  for (kind, name), manifest in _MANIFESTS.items():
    if kind not in ("Job", "StatefulSet"):
      continue
    command = _container(manifest)["command"]
    if command == ["sh", "-c"]:
      command = _planned(manifest)
    if command[:2] == _REPRODUCE[:2] or command[0] == "tff-shift":
      yield pytest.param(command, id=name)


@pytest.mark.parametrize("command", _commands())
def test_commands_are_binaries_with_flags_that_they_know(
  command, run_here, monkeypatch
):
  if command[:3] == _REPRODUCE:
    arguments = command[3:]
    module, options = reproduce, {"takes_arguments": True}
  else:
    name = command[1].replace("-", "_")
    arguments = preset_flag.expand([name, *command[2:]], name)[1:]
    module = importlib.import_module(f"tff_shift.binaries.{name}")
    options = {}
  monkeypatch.chdir(_DEPLOY.parent)
  parsed = []
  code = run_here(module, arguments, lambda *_: parsed.append(1), **options)
  assert (code, parsed) == (0, [1])


def _workers_of(command):
  (found,) = (each for each in command if each.startswith("--workers="))
  return found.partition("=")[2].split(",")


class TestCompose:
  PROXIES = re.findall(
    r"listen (\d+) ssl;\s+proxy_pass (\w+):(\d+);",
    (_DEPLOY / "nginx.conf").read_text(),
  )

  def test_driver_reaches_each_worker_through_the_proxy(self):
    ports, names, _ = zip(*self.PROXIES, strict=True)
    driver = _SERVICES["driver"]["command"]
    assert _workers_of(driver) == [f"proxy:{port}" for port in ports]
    assert _SERVICES["proxy"]["ports"] == [f"{port}:{port}" for port in ports]
    assert list(names) == [
      name
      for name, service in _SERVICES.items()
      if service.get("command", [])[:2] == ["tff-shift", "workers"]
    ]
    for _, name, port in self.PROXIES:
      assert f"--port={port}" in _SERVICES[name]["command"]

  def test_nobody_else_reaches_them(self):
    networks = {name: set(each["networks"]) for name, each in _SERVICES.items()}
    assert set.union(*networks.values()) == set(_COMPOSE["networks"])
    assert _COMPOSE["networks"]["workers"] == {"internal": True}
    with_workers = {name for name in networks if "workers" in networks[name]}
    assert with_workers == {"worker_1", "worker_2", "proxy"}
    assert networks["worker_1"] == networks["worker_2"] == {"workers"}
    assert not any(
      "ports" in _SERVICES[each] for each in with_workers - {"proxy"}
    )

  def test_script_makes_the_certificates_that_they_name(self, certificates):
    text = (_DEPLOY / "nginx.conf").read_text()
    text += " ".join(_SERVICES["driver"]["command"])
    named = set(re.findall(r"/certificates/([\w.]+)", text))
    assert named == {each.name for each in certificates.iterdir()}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
  """A folder of certificates of the script, for localhost."""
  if not shutil.which("openssl"):
    pytest.skip("openssl is not installed")
  folder = tmp_path_factory.mktemp("certificates") / "new"
  subprocess.run(
    [_DEPLOY / "certificates.sh", folder, "proxy", "localhost"],
    check=True,
    capture_output=True,
  )
  return folder


@pytest.fixture
def free_ports():
  """Two ports that nobody listens on."""
  local = "127.0.0.1", 0
  with socket.create_server(local) as one, socket.create_server(local) as other:
    return [each.getsockname()[1] for each in (one, other)]


@tff.tensorflow.computation(np.int32)
def _double(x):
  return 2 * x


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def _sum_of_doubles(values):
  return tff.federated_sum(tff.federated_map(_double, values))


@pytest.mark.cpp
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nginx"), reason="needs nginx")
def test_proxy_passes_on_whom_the_authority_knows(
  tmp_path, certificates, free_ports
):
  nginx = pathlib.Path(shutil.which("nginx"))
  text = (_DEPLOY / "nginx.conf").read_text()
  module = nginx.parents[1] / "lib/nginx/modules/ngx_stream_module.so"
  head = f"load_module {module};\n" * module.exists()
  with contextlib.ExitStack() as stack:
    workers = [stack.enter_context(local.Worker.start()) for _ in range(2)]
    for old, new in {
      "/certificates": str(certificates),
      "worker_1:8000": workers[0].address,
      "worker_2:8000": workers[1].address,
      "listen 8443": f"listen {free_ports[0]}",
      "listen 8444": f"listen {free_ports[1]}",
    }.items():
      assert old in text
      text = text.replace(old, new)
    path = tmp_path / "nginx.conf"
    path.write_text(f"{head}pid {tmp_path}/pid;\nerror_log stderr;\n{text}")
    process = subprocess.Popen([nginx, "-c", path, "-g", "daemon off;"])
    stack.callback(process.wait)
    stack.callback(process.terminate)
    options = {
      "workers": [f"localhost:{port}" for port in free_ports],
      "worker_certificate": str(certificates / "authority.crt"),
    }
    remote = execution.RemoteWorkers(
      **options,
      worker_client_certificate=str(certificates / "client.crt"),
      worker_client_key=str(certificates / "client.key"),
    )
    with execution.use("remote", remote_workers=remote):
      assert _sum_of_doubles([1, 2, 4]) == 14
    unknown = execution.RemoteWorkers(**options, worker_timeout=0.5)
    with (
      pytest.raises(Exception, match="certificate"),
      execution.use("remote", remote_workers=unknown),
    ):
      _sum_of_doubles([1])


class TestKubernetes:
  def test_driver_names_each_worker_that_the_service_has(self):
    workers = _WORKERS["StatefulSet", "workers"]["spec"]
    service = _WORKERS["Service", workers["serviceName"]]["spec"]
    labels = workers["template"]["metadata"]["labels"]
    assert workers["selector"]["matchLabels"] == labels == service["selector"]
    assert service["clusterIP"] == "None"
    container = _container(_WORKERS["StatefulSet", "workers"])
    (port,), (own,) = service["ports"], container["ports"]
    number = port["port"]
    assert port == {"name": own["name"], "port": own["containerPort"]}
    assert f"--port={number}" in container["command"]
    assert container["readinessProbe"]["tcpSocket"]["port"] == own["name"]
    driver = _WORKERS["Job", "driver"]
    assert _workers_of(_container(driver)["command"]) == [
      f"workers-{index}.{workers['serviceName']}:{number}"
      for index in range(workers["replicas"])
    ]
    # Only drivers reach workers.
    policy = _WORKERS["NetworkPolicy", "workers"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
    (rule,) = policy["ingress"]
    of_driver = driver["spec"]["template"]["metadata"]["labels"]
    assert rule["from"] == [{"podSelector": {"matchLabels": of_driver}}]
    assert rule["ports"] == [{"port": "grpc"}]

  def test_volumes_are_claimed(self):
    for (kind, _), manifest in _MANIFESTS.items():
      if kind != "Job":
        continue
      pod, (volume,) = _pod(manifest), _pod(manifest)["volumes"]
      (mount,) = _container(manifest)["volumeMounts"]
      assert mount == {"name": volume["name"], "mountPath": "/runs"}
      claim = volume["persistentVolumeClaim"]["claimName"]
      assert ("PersistentVolumeClaim", claim) in _MANIFESTS
      # What a policy for exit codes needs.
      assert pod["restartPolicy"] == "Never"

  @pytest.mark.long
  def test_grid_has_a_pod_for_each_line(self, tmp_path):
    """The shells of the pods, with a folder for /runs."""
    script = f'exec {sys.executable} "$@"'
    shell = _with_command(tmp_path, "python", script)

    def run(name, **environment):
      (script,) = _container(_GRID["Job", name])["args"]
      subprocess.run(
        ["sh", "-c", script.replace("/runs", str(tmp_path))],
        cwd=_DEPLOY.parent,
        env=shell | environment,
        check=True,
        timeout=100,
      )

    run("grid-plan")
    jobs = tmp_path / "jobs.txt"
    lines = jobs.read_text().splitlines()
    assert _GRID["Job", "grid"]["spec"]["completions"] == len(lines)
    assert all("--resume=auto" in line for line in lines)
    jobs.write_text("".join(f"touch {tmp_path}/of_{i}\n" for i in range(3)))
    for index in (0, 2, 3):
      run("grid", JOB_COMPLETION_INDEX=str(index))
    assert {each.name for each in tmp_path.glob("of_*")} == {"of_0", "of_2"}

  def test_page_is_of_the_table_of_the_grid(self):
    planned = _planned(_GRID["Job", "grid-plan"])
    page = _container(_PAGE["Job", "grid-page"])["command"]
    assert page[:4] == planned[:4]
    assert {*page[4:]} - {*planned} == {"--resume"}
    # The folder with the checkout in the image.
    for manifest in (*_GRID.values(), *_PAGE.values()):
      if manifest["kind"] == "Job":
        assert _container(manifest)["workingDir"] == "/tff_shift"


def _with_command(folder, name, script):
  """The environment with a shell script as a command, in a folder."""
  stub = folder / "bin" / name
  stub.parent.mkdir()
  stub.write_text(f"#!/bin/sh\n{script}\n")
  stub.chmod(0o755)
  return os.environ | {"PATH": f"{stub.parent}:{os.environ['PATH']}"}


class _Slurm:
  """Stands in for sbatch: runs the tasks of an array, one after the other."""

  SCRIPT = _DEPLOY / "slurm" / "grid.sh"

  def __init__(self, folder):
    self.requeued = folder / "requeued"
    script = f'echo "$@" >> {self.requeued}'
    self._environment = _with_command(folder, "scontrol", script)
    self._environment["SLURM_ARRAY_JOB_ID"] = "7"

  def start(self, jobs, task):
    return subprocess.Popen(
      ["bash", self.SCRIPT, jobs],
      cwd=_DEPLOY.parent,
      env=self._environment | {"SLURM_ARRAY_TASK_ID": str(task)},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )

  def run(self, jobs, task):
    process = self.start(jobs, task)
    output, _ = process.communicate(timeout=200)
    return process.returncode, output


def _rows(folder):
  return (folder / "metrics.csv").read_text().splitlines()


class TestSlurm:
  @pytest.fixture
  def slurm(self, tmp_path):
    return _Slurm(tmp_path)

  @pytest.fixture
  def print_jobs(self, tmp_path, start_binary):
    """Returns `print_jobs(name)`: the file of the jobs of a folder."""
    (tmp_path / "mine.toml").write_text(_TABLE)

    def make(name):
      flags = f"--full --print_jobs --output_dir={tmp_path / name}"
      given = tmp_path / "mine.toml", flags
      with start_binary("reproduce", given) as process:
        lines, _ = process.communicate()
      assert process.returncode == 0
      path = tmp_path / f"{name}.txt"
      path.write_text(lines)
      return path

    return make

  def test_scripts_are_scripts(self):
    subprocess.run(["bash", "-n", _Slurm.SCRIPT], check=True)
    subprocess.run(["sh", "-n", _DEPLOY / "certificates.sh"], check=True)
    lines = _Slurm.SCRIPT.read_text().splitlines()
    # sbatch reads no option after the first command.
    first = next(i for i, each in enumerate(lines) if each.startswith("set"))
    options = [i for i, each in enumerate(lines) if each.startswith("#SBATCH")]
    assert options and max(options) < first
    assert {"#SBATCH --requeue", "#SBATCH --signal=B:USR1@120"} <= {*lines}

  @pytest.mark.long
  def test_requeued_task_resumes_and_ends_as_one_that_was_not(
    self, slurm, print_jobs, tmp_path
  ):
    whole, broken = map(print_jobs, ("whole", "broken"))
    for task in (1, 2):
      code, output = slurm.run(whole, task)
      assert code == 0, output
    process = slurm.start(broken, 1)
    deadline = time.monotonic() + 100
    while not any((tmp_path / "broken").glob("*/*/checkpoints/**/*")):
      assert time.monotonic() < deadline and process.poll() is None
      time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=100)
    assert slurm.requeued.read_text() == "requeue 7_1\n", output
    for task in (1, 2):
      code, output = slurm.run(broken, task)
      assert code == 0, output
    for job in ("fed_avg", "fed_rep"):
      found, expected = (
        _rows(tmp_path / name / "circle" / job) for name in ("broken", "whole")
      )
      assert found == expected and len(found) > 2
    # A task that is run again does nothing.
    code, output = slurm.run(broken, 1)
    assert code == 0 and "nothing to do" in output

  def test_task_ends_with_the_code_of_its_job(self, slurm, tmp_path):
    jobs = tmp_path / "jobs.txt"
    loop = "while :; do sleep 0.1; done"
    jobs.write_text(
      f"sh -c 'exit 3'\nsleep 60\nsh -c 'trap \"exit 5\" TERM; {loop}'\n"
    )
    assert slurm.run(jobs, 1) == (3, "")
    code, output = slurm.run(jobs, 4)
    assert code == 2 and "has no line 4" in output
    # Nor is a job queued again that fails near the limit.
    for task, number, code in (
      (2, signal.SIGTERM, 143),
      (3, signal.SIGUSR1, 5),
    ):
      process = slurm.start(jobs, task)
      time.sleep(0.5)
      process.send_signal(number)
      assert process.wait(timeout=20) == code
    assert not slurm.requeued.exists()
