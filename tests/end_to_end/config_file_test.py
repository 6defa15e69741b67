"""Files of flags in YAML, and the config.json of a run."""

import json
import os

import pytest

from tests.fixtures import tables
from tff_shift.command_line.flags import config_file


def test_file_becomes_flags_in_its_place(tmp_path):
  path = tmp_path / "run.yaml"
  path.write_text(
    "algorithm: [fed_avg, fed_evolve]\nlearning_rate: [0.1, 1e-3]\n"
    "rounds: 5  # short\nsave_model: true\nprogress: false\ndataset: null\n"
    "dirichlet: .inf\ntime: 2024-01-31\nlabel: 'no'\n"
  )
  found = config_file.expand(["binary", f"--config={path}", "--rounds=7"])
  assert " ".join(found) == (
    "binary --algorithm=fed_avg,fed_evolve --learning_rate=0.1,1e-3 --rounds=5"
    " --save_model --noprogress --dirichlet=inf --time=2024-01-31 --label=no"
    " --rounds=7"
  )
  assert config_file.expand(["b", "-config", str(path)]) == ["b", *found[1:-1]]


def test_config_of_a_run_is_one_without_its_folder(tmp_path):
  path = tmp_path / "config.json"
  given = {"rounds": 3, "seeds": ["0", "1"], "output_dir": "runs/a"}
  given |= {"overwrite": True, "resume": False, "dataset": "x.npz"}
  given["dataset (SHA-256)"] = "ab"
  given["weights_file (SHA-256)"] = "cd"
  path.write_text(json.dumps({"format": 2, "flags": given}))
  found = config_file.expand(["b", f"--config={path}"])
  assert " ".join(found) == (
    "b --rounds=3 --seeds=0,1 --dataset=x.npz --dataset_sha256=ab"
  )


@pytest.mark.parametrize(
  "text, message",
  tables.cases(r"""
None
    it cannot be read: [Errno 2]
"rounds: ["
    it cannot be read: while parsing
"- rounds"
    it must have a line NAME: VALUE for each flag
"round: 3"
    round is not a flag; did you mean rounds?
"rounds: {a: 3}"
    line 1: rounds is nested; it must be a text, a
"seed: 0\nrounds: 1:30"
    line 2: rounds: 1:30 has several meanings in
"rounds: 010"
    line 1: rounds: 010 has several meanings in YAML; write
"label: no"
    line 1: label: no has several meanings
"progress: !!bool 'yes'"
    line 1: progress has the tag tag:yaml.org,2
"rounds: !!python/name:os.x"
    line 1: rounds has the tag tag:yaml.org
"rounds: 1\nseed: 0\nrounds: 2"
    rounds is there twice, in lines 1, 3
'{"rounds": 1'
    Expecting ',' delimiter: line 1
'{"rounds": {"a": 1}}'
    rounds has the value {'a': 1}; it must be a
"seeds: ['0,1']"
    seeds has the value '0,1'; it must be a text
"""),
)
def test_file_that_has_no_flags_is_refused(text, message, refused, tmp_path):
  path = tmp_path / "run.yaml"
  if text is not None:
    path.write_text(text)
  line = refused("evolving", f"--config={path}")
  assert f"--config={path}: {message}" in line


def test_endless_files_are_refused(refused, tmp_path):
  pipe = tmp_path / "pipe.yaml"
  os.mkfifo(pipe)
  endless = tmp_path / "endless.yaml"
  endless.symlink_to("/dev/zero")
  kinds = {pipe: "a named pipe", endless: "a device", tmp_path: "a folder"}
  for path, kind in kinds.items():
    line = refused("evolving", f"--config={path}")
    assert f"--config={path}: it is {kind}; it must be a file" in line


def test_algorithm_of_an_import_in_a_file_is_known(
  run_here, tmp_path, capsys, monkeypatch
):
  module = tmp_path / "mine_of_config.py"
  module.write_text("SCENARIOS = 3\n")
  path = tmp_path / "run.yaml"
  path.write_text(f"import: {module}\n")
  argv = ["evolving", f"--config={path}"]
  monkeypatch.setattr("sys.argv", argv)
  assert run_here("evolving", argv[1:]) == 2
  assert "--import: " in capsys.readouterr().err


@pytest.mark.long
def test_config_of_a_run_repeats_it(run, tmp_path):
  """Also where data set flags that a user must not set."""
  path = tmp_path / "drift.csv"
  rows = [
    f"{client},{month},{(client + month + i) % 2},{i * 0.1},{month}"
    for client in range(3)
    for month in range(4)
    for i in range(12)
  ]
  path.write_text("client,month,label,a,b\n" + "\n".join(rows) + "\n")
  cache = f"--cache_dir={tmp_path / 'cache'} --algorithm=source"
  for binary, dataset, flags in (
    (
      *("evolving", "--dataset=circle"),
      "--num_domains=3 --num_clients=2 --algorithm=fed_avg --rounds=1",
    ),
    (
      *("online_adaptation", f"--dataset={path}"),
      f"--label=label --client=client --time=month {cache}",
    ),
  ):
    first = run(binary, dataset, flags, "--noprogress", folder=binary)
    config = f"--config={first.folder / 'config.json'}"
    # A run does not record the folders of files.
    again = run(binary, config, dataset, folder=f"{binary}_again")
    assert again.rows == first.rows
