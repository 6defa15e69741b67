"""A file of arrays runs in every binary; what is wrong with one is said."""

import hashlib

import numpy as np
import pytest

from tests.fixtures import tables

_NUM_EXAMPLES = 240
_NUM_CLIENTS = 3


_FLAGS = {
  "evolving": "--algorithm=local --rounds=1 --local_steps=1",
  "online_adaptation": """
    --algorithm=source --timesteps=1 --samples_per_step=5 --initial_examples=5
    --pretraining_epochs=1
  """,
  "guidance": "--algorithm=fed_avg --rounds=1 --local_steps=1 --batch_size=8",
  "dynamic_personalization": """
    --algorithm=local --rounds=1 --periods=1 --test_distributions=0.5
    --train_distributions=iid --period_size=10 --pretraining_epochs=1
  """,
}


def make_arrays(kind, *keys):
  """Makes arrays in which every client has all classes in all domains."""
  order = np.arange(_NUM_EXAMPLES)
  arrays = {
    "x": np.random.default_rng(0).normal(size=(_NUM_EXAMPLES, 5)),
    "y": order % 2,
    "domain": 2019 + 2 * (order // 2 % 3),
    "client": np.array(["north", "south", "west"])[order // 6 % 3],
    "class_names": np.array(["no", "yes"]),
  }
  if kind == "images":
    arrays["x"] = np.random.default_rng(0).integers(
      0, 256, (_NUM_EXAMPLES, 8, 8, 3)
    )
  return {key: arrays[key] for key in ("x", "y", *keys)}


@pytest.fixture
def run_file(tmp_path, monkeypatch, run):
  """Returns `run(scenario, arrays, *flags, **options)`, with the arrays."""
  monkeypatch.chdir(tmp_path)

  def run_scenario(scenario, arrays, *flags, **options):
    np.savez("tabular.npz", **arrays)
    first = "--dataset=tabular.npz --noprogress"
    return run(scenario, _FLAGS[scenario], first, *flags, **options)

  return run_scenario


@pytest.mark.long
@pytest.mark.parametrize(
  "scenario, arrays, flags, dealt",
  [
    (
      "evolving",
      "vectors domain client class_names",
      "",
      {"dirichlet": "given", "num_domains": 3},
    ),
    (
      "online_adaptation",
      "vectors client",
      "--cache_dir=cache",
      {"shift_kind": "label"},
    ),
    (
      "guidance",
      "images client",
      "--model=mlp --model_width=4",
      {"partition": "given"},
    ),
    (
      "dynamic_personalization",
      "vectors client",
      "--cache_dir=cache --distance_features=extractor",
      {},
    ),
  ],
)
def test_file_runs(scenario, arrays, flags, dealt, run_file, tmp_path):
  ended = run_file(scenario, make_arrays(*arrays.split()), flags)
  summary = ended.runs[0]
  assert summary["dataset"] == "tabular"
  expected = {"model": "mlp", "num_clients": _NUM_CLIENTS, **dealt}
  assert expected.items() <= summary["setting"].items()
  flags = ended.config["flags"]
  assert flags["dataset"] == "tabular"
  digest = hashlib.sha256((tmp_path / "tabular.npz").read_bytes()).hexdigest()
  assert flags["dataset_sha256"] == digest


@pytest.mark.slow
def test_run_goes_on_with_the_same_data_alone(run_file, tmp_path):
  arrays = make_arrays("vectors", "domain", "client")
  run_file("evolving", arrays)
  (tmp_path / "elsewhere").mkdir()
  (tmp_path / "tabular.npz").rename(tmp_path / "elsewhere" / "tabular.npz")
  # The file of the fixture is a new one; the one that has moved is the old one.
  changed = arrays | {"x": arrays["x"] + 1}
  message = run_file("evolving", changed, "--resume", code=2).errors
  assert "--dataset_sha256 was " in message
  assert message.count("\n") == 1
  assert "--dataset " not in message
  run_file("evolving", changed, "--dataset=elsewhere/tabular.npz --resume")


def _few_classes():
  """Makes three clients with two of the classes 1 to 6 each, and few labels."""
  rng = np.random.default_rng(0)
  client = np.repeat(np.arange(3), [150, 150, 30])
  y = 1 + 2 * client + np.arange(330) % 2
  x = rng.normal(size=(330, 4)) + y[:, np.newaxis]
  return {"x": x, "y": y, "client": client}


@pytest.mark.long
def test_clients_with_few_classes_and_labels_run_to_the_end(run_file):
  # Q_T is one class, which the client may not hold; at the end of square it is
  # all that is drawn.
  flags = """
    --algorithm=fed_ade --timesteps=4 --shift=square --initial_examples=10
    --dirichlet=0.001 --cache_dir=cache --pretraining_distribution=uniform
  """
  ended = run_file("online_adaptation", _few_classes(), flags)
  # 30 examples: 9 for the stream, 20 % of the other 21 are labelled.
  assert ended.errors.splitlines() == [
    "online_adaptation: y of tabular.npz: the greatest label is 6, and 6 of the"
    " 7 classes 0..6 occur; classes without an example: 0",
    "online_adaptation: pre-training on 75 examples of tabular.npz: the label"
    " distribution uniform cannot be kept, because 1 of 6 classes have less"
    " than half of the required examples; they give all of theirs (5: 5 of"
    " 12.5)",
    "online_adaptation: 1 of 3 clients have fewer labelled examples than"
    " --initial_examples=10 and use all of them (at least 4)",
  ]
  assert ended.runs[0]["setting"]["clients_below_initial_examples"] == 1


_REFUSED = {
  "evolving": """
vectors
    tabular.npz has no domains: it needs the array domain
vectors domain client --dirichlet=0.5
    --dirichlet=0.5 does not apply to --dataset=tabular.npz
vectors domain client --num_clients=4
    --num_clients=4: --dataset=tabular.npz has 3 clients of its own
vectors domain --dataset_sha256=abc
    --dataset_sha256=abc: the SHA-256 of --dataset=tabular.npz is
""",
  "guidance": """
images client --partition=2_spc
    --partition=2_spc does not apply to --dataset=tabular.npz
""",
  "online_adaptation": """
vectors --shift_kind=covariate
    --shift_kind=covariate cannot corrupt --dataset=tabular.npz: images must \
    be uint8, got float32
vectors --input_scaling=zero_one
    --input_scaling applies to images, and --dataset=tabular.npz has
""",
  "dynamic_personalization": """
vectors --dataset=tabluar.npz
    tabluar.npz: there is no such file
vectors --dataset=digts
    --dataset=digts: it must be one of cifar10,
vectors --dataset=digits --dataset_sha256=abc
    --dataset_sha256=abc: the SHA-256 of --dataset=digits is unknown
vectors --dataset=tfds:mnist:image
    dataset must be tfds:<name> or tfds:<name>:<x>,<y>
""",
}


@pytest.mark.parametrize(
  "scenario, given, message",
  [
    (scenario, *row)
    for scenario, text in _REFUSED.items()
    for row in tables.rows(text)
  ],
)
def test_what_does_not_go_together_is_refused(
  scenario, given, message, tmp_path, refused, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  arrays, _, flag = given.partition(" --")
  np.savez("tabular.npz", **make_arrays(*arrays.split()))
  first = f"{_FLAGS[scenario]} --dataset=tabular.npz"
  line = refused(scenario, f"{first} --{flag}" if flag else first)
  assert message[0] in line
