"""Jobs that are run, stopped, resumed and refused; see `fake_binary`."""

import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

import markupsafe
import psutil
import pytest
from scipy import stats

from experiments.papers import child
from experiments.papers import job as job_lib
from experiments.papers import job_folder
from experiments.papers import reductions
from experiments.papers import running
from experiments.papers import specification
from tests.fixtures import tables

_METHODS = ("fed_avg", "fed_rep", "fed_evp")
_SMALL = ("--reduce=num_seeds=2,rounds=5", "--only=" + ",".join(_METHODS))
_IID = "rotated_digits_dirichlet_inf"
_TABLES = pathlib.Path(__file__).parents[2] / "experiments" / "tables"

pytestmark = pytest.mark.usefixtures("fake_binaries")


def starts(folder):
  """How often each job was started."""
  return {
    f"{path.parent.parent.name}/{path.parent.name}": len(path.read_text())
    for path in folder.glob("*/*/starts")
  }


@pytest.mark.slow
def test_table_is_run_once_and_shown(tmp_path, run_reproduce, pages, capsys):
  folder = tmp_path / "out"
  arguments = ["demo/digits", f"--output_dir={folder}", "--jobs=2", *_SMALL]
  assert run_reproduce(*arguments) == 0
  assert set(starts(folder).values()) == {1}
  assert len(starts(folder)) == 6  # Three methods, two columns.
  (first,) = pages
  cells = {(cell.row, cell.column): cell for cell in first.cells}
  cell = cells["FedAvg", ("Dir = ∞ (iid)", "client")]
  # The last of the three rates; see `fake_binary.value`.
  assert cell.by_seed == pytest.approx({0: 1.2 * 7 + 0.03, 1: 1.2 * 7 + 1.03})
  assert cell.run.chosen == {"learning_rate": "0.003"}
  assert cell.run.scores == {
    "rate 0.0003": 3e-4,
    "rate 0.001": 1e-3,
    "rate 0.003": 3e-3,
  }
  assert cell.run.folder == f"{_IID}/fed_avg"
  assert cell.run.is_finished
  # The table has no paper's values, so who was not asked for is not in it.
  assert first.rows == ["FedAvg", "FedRep", "FedEvp"]
  absent = cells["FedRep", ("Dir = 1.0", "server")].absent
  assert absent == "paper only: the server has no head"
  curve = next(c for c in first.curves if c.row == "FedAvg" and c.seed == 1)
  assert (curve.step, curve.points) == ("round", [(5.0, 1.5)])
  told = {line.name: line for line in first.protocol}
  assert (told["rounds"].paper, told["rounds"].ours) == ("30", "5")
  assert told["rounds"].is_reduced and not told["num clients"].is_reduced
  assert not first.is_full
  decisions = dict(first.decisions)
  assert next(iter(decisions)) == "tff_shift/scenarios/evolving/simulation.py"
  of_method = decisions["tff_shift/algorithms/fed_evp.py"]
  assert of_method.startswith("* Text and Algorithm 4 disagree")
  # Nothing is left to run; the plan is kept.
  assert run_reproduce(*arguments[:2], "--resume", _SMALL[1]) == 0
  assert set(starts(folder).values()) == {1}
  assert pages[1].cells == first.cells
  assert capsys.readouterr().out.count("done before") == 6


@pytest.mark.slow
def test_one_command_starts_goes_on_and_does_nothing(
  tmp_path, run_reproduce, pages, monkeypatch, capsys
):
  def write(contents, folder):
    pages.append(contents)
    command = markupsafe.escape(contents.command)
    (folder / "report.html").write_text(f"<code>{command}</code>")

  monkeypatch.setattr(
    sys.modules["tff_shift.reporting.pages.page"], "write", write
  )
  folder = tmp_path / "out"
  arguments = [
    *("demo/digits", f"--output_dir={folder}", "--columns=inf"),
    *("--resume=auto", "--flags=--batch_size='8'", *_SMALL),
  ]
  monkeypatch.setenv("FAKE_FAILS", "fed_rep")
  assert run_reproduce(*arguments) == 3
  # A failure stops no other.
  line = f"{_IID}/fed_rep: exit code 1: evolving: it is broken"
  assert pages[0].problems == [line.replace("exit", "failed: exit")]
  log = folder / _IID / "fed_rep.log"
  assert f"reproduce: {line}; log: {log}\n" in capsys.readouterr().err
  assert log.read_text() == "first line\nevolving: it is broken\n"
  cells = {
    cell.row: cell for cell in pages[0].cells if cell.column[1] == "client"
  }
  assert cells["FedRep"].absent == "failed: exit code 1: evolving: it is broken"
  assert cells["FedAvg"].by_seed and cells["FedEvp"].by_seed
  # Mended, it goes on; the others are left alone.
  monkeypatch.delenv("FAKE_FAILS")
  assert run_reproduce(*arguments) == 0
  assert pages[1].problems == []
  expected = {f"{_IID}/{name}": 1 + (name == "fed_rep") for name in _METHODS}
  assert starts(folder) == expected
  capsys.readouterr()
  times = {each: each.stat().st_mtime_ns for each in folder.rglob("*")}
  assert run_reproduce(*arguments) == 0
  assert capsys.readouterr() == (
    f"nothing to do: all jobs are done; page: {folder / 'report.html'}\n",
    "",
  )
  assert times == {each: each.stat().st_mtime_ns for each in folder.rglob("*")}
  assert len(pages) == 2
  # Another page of the same jobs, one that is older, and one that is asked for.
  assert run_reproduce(*arguments, "--only=fed_avg") == 0
  assert run_reproduce(*arguments) == 0
  os.utime(folder / "report.html", (0, 0))
  assert run_reproduce(*arguments) == 0
  assert run_reproduce(*arguments, "--page_only") == 0
  assert len(pages) == 6
  assert starts(folder) == expected


def test_the_page_has_the_columns_that_are_asked_for(
  tmp_path, run_reproduce, pages
):
  for columns, expected in (
    (["--columns=circle"], {"circle"}),
    ([], {"circle", "portraits", "caltran"}),
  ):
    folder = f"--output_dir={tmp_path / str(len(columns))}"
    arguments = ["fed_evolve/3", folder, "--reduce=rounds=5", "--page_only"]
    assert run_reproduce(*arguments, *columns) == 0
    shown = {cell.column[0].lower() for cell in pages[-1].cells}
    assert shown == expected
    assert {c.heading[0].lower() for c in pages[-1].columns} == expected


@pytest.mark.parametrize(
  "more, message",
  tables.cases(r"""
()
    one of --full, --budget and --reduce
("--full", "--budget=1h")
    --full and --budget: set only one
("--budget=1",)
    --budget=1: it must be a time such as 30m
("--full", "--only=x")
    --only=x: it must be one of fed_avg
("--full", "--columns=x")
    --columns=x: it must be part of one of rotated_digits
("--full", "--print_jobs", "--page_only")
    set only one of them
("--full", "--print_jobs", "--only=fed_avg", "--output_dir=a\nb")
    --print_jobs: a flag has a line break
("--full", "--jobs=0")
    --jobs=0: it must be at least 1
("--full", "--flags=--x=1")
    no flag --x
("--full", "--flags=rounds=1")
    'rounds=1': it must be --name=value
("--full", "--output_dir=")
    --output_dir: it must be set
("--full", "--output_dir=/proc/self/fdinfo/run")
    --output_dir: /proc/self/fdinfo/run cannot be written:
"""),
)
def test_wrong_flags_are_refused(
  tmp_path, run_reproduce, capsys, more, message
):
  code = run_reproduce("demo/digits", f"--output_dir={tmp_path / 'a'}", *more)
  error = capsys.readouterr().err
  assert code == 2
  assert error.count("\n") == 1 and message in error
  assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_other_plans_do_not_mix(tmp_path, run_reproduce, capsys):
  folder = f"--output_dir={tmp_path}/a"
  only = ("--only=fed_avg", "--columns=inf")
  assert run_reproduce("demo/digits", folder, "--reduce=rounds=5", *only) == 0
  for more, message in (
    (["--reduce=rounds=5"], "add --resume"),
    (["--reduce=rounds=6", "--resume"], "contradicts the flags"),
    (["--resume", "--flags=--rounds=3"], "contradicts the flags"),
  ):
    assert run_reproduce("demo/digits", folder, *more, *only) == 2
    assert message in capsys.readouterr().err
  # Another plan.json over the same runs: they say which flag differs.
  plan = tmp_path / "a" / "plan.json"
  plan.write_text(plan.read_text().replace('"5"', '"4"'))
  assert run_reproduce("demo/digits", folder, "--resume", *only) == 2
  error = capsys.readouterr().err
  assert "contains another run" in error
  assert "--rounds=5" in error and "--rounds=4" in error
  assert starts(tmp_path / "a") == {f"{_IID}/fed_avg": 1}


def test_a_folder_with_other_files_is_refused(tmp_path, run_reproduce, capsys):
  (tmp_path / "mine").write_text("mine")
  assert run_reproduce("demo/digits", f"--output_dir={tmp_path}", "--full") == 2
  assert "has files but no plan.json" in capsys.readouterr().err
  assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.long
def test_printed_lines_fill_the_folders_that_one_command_collects(
  tmp_path, run_reproduce, pages, capfdbinary
):
  """Two machines share the lines; a shell runs each twice."""
  lines = {}
  for name in ("a", "b b"):
    arguments = ["demo/digits", f"--output_dir={tmp_path}/{name}", *_SMALL]
    # The second time with the stored plan.
    for _ in range(2):
      assert run_reproduce(*arguments, "--print_jobs") == 0
      out, err = capfdbinary.readouterr()
      lines[name] = out.decode().splitlines()
      assert len(lines[name]) == 6 and not err
  for line in [*lines["a"][::2], *lines["b b"][1::2]] * 2:
    subprocess.run(["sh", "-c", line], check=True, timeout=60)
  assert not set(starts(tmp_path / "a")) & set(starts(tmp_path / "b b"))
  shutil.copytree(tmp_path / "b b", tmp_path / "a", dirs_exist_ok=True)
  one = [f"--output_dir={tmp_path}/a", "--resume", _SMALL[1]]
  assert run_reproduce("demo/digits", *one) == 0
  assert (
    run_reproduce("demo/digits", f"--output_dir={tmp_path}/o", *_SMALL) == 0
  )
  assert set(starts(tmp_path / "a").values()) == {1}
  assert len(starts(tmp_path / "a")) == 6
  joined, undisturbed = pages
  assert _values(joined) == _values(undisturbed)
  assert joined.curves == undisturbed.curves
  assert joined.protocol == undisturbed.protocol


def test_jobs_without_their_data_are_told(tmp_path, run_reproduce, capsys):
  table = tmp_path / "two.toml"
  table.write_text(
    'name = "mine/two"\n'
    f'base = "{_TABLES}/demo_digits"\n'
    'ours.datasets = ["rotated_digits", "mnist"]\n'
    '[datasets.mnist]\nlabel = "MNIST"\nneeds = ["mnist"]\n'
    "flags = { num_clients = 5, rounds = 30, local_steps = 5 }\n"
  )
  folder = f"--output_dir={tmp_path}/out"
  data = f"--data_dir={tmp_path}/data"
  told = "MNIST is not available (no folder mnist)"
  arguments = [str(table), folder, data, *_SMALL, "--print_jobs"]
  assert run_reproduce(*arguments) == 0
  found = capsys.readouterr()
  assert len(found.out.splitlines()) == 6
  assert found.err.count("\n") == 1 and told in found.err

  arguments = ["fed_evolve/1", folder + "2", data, "--full", "--print_jobs"]
  assert run_reproduce(*arguments) == 2
  found = capsys.readouterr()
  assert not found.out and not (tmp_path / "out2").exists()
  assert found.err.count("\n") == 1
  assert "--print_jobs: there are no jobs: paper only: rotated M" in found.err


def _values(contents):
  return [(c.row, c.column, c.by_seed, c.absent) for c in contents.cells]


@pytest.mark.slow
def test_p_values_are_computed_from_the_other_table(
  tmp_path, run_reproduce, pages
):
  (tmp_path / "data" / "mnist").mkdir(parents=True)
  arguments = (
    "fed_evolve/11",
    f"--data_dir={tmp_path}/data",
    f"--output_dir={tmp_path}/out",
    "--reduce=num_seeds=1,num_settings=1",
    *("--only=fed_avg,fed_evolve,fed_evp", "--jobs=2"),
  )
  assert run_reproduce(*arguments) == 0
  cells = {(cell.row, cell.column[0]): cell for cell in pages[0].cells}
  assert len(cells) == 28
  # `fake_binary` differs by 1.2, 1.1 and 1.01 times 3 letters, twice each.
  p_value = stats.ttest_1samp([3.6, 3.3, 3.03] * 2, 0.0).pvalue
  assert cells["FedEvolve", "FedAvg"].by_seed == pytest.approx({0: p_value})
  assert cells["FedEvolve", "FedAvg"].paper.mean == 5.17e-4
  assert cells["FedEvolve", "GMA"].absent.startswith("not run")
  assert pages[0].name == "fed_evolve/11"


def _one_job(method="fed_avg"):
  planned = job_lib.plan(
    specification.load("demo/digits"), reductions.Reductions()
  )
  return job_lib.chosen(planned, [method], ["inf"])[0]


def _run(job, folder, num_processes=1):
  command = job_lib.resuming_command(job, folder)
  return running.run([job], [command], folder, num_processes)


def _interrupt(file):
  """Sends Ctrl-C to this process as soon as a file is there."""
  while not file.exists():
    time.sleep(0.05)
  os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_ctrl_c_ends_the_binaries(num_processes, tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("FAKE_WAITS", "fed_avg")
  job = _one_job()
  place = job_folder.JobFolder(tmp_path, job)
  threading.Thread(target=_interrupt, args=[place.folder / "waits"]).start()
  with pytest.raises(KeyboardInterrupt):
    _run(job, tmp_path, num_processes)
  assert (place.folder / "interrupted").exists()
  assert not place.read().is_finished
  assert "FAILED" not in capsys.readouterr().out
  # It is free, and goes on.
  monkeypatch.delenv("FAKE_WAITS")
  (place.folder / "waits").unlink()
  assert _run(job, tmp_path) == {}
  assert place.is_finished()


_PARENT = """
import os, subprocess, sys
process = subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid()),
                            sys.executable, "-m", "fake_binary", *sys.argv[2:]])
print(process.pid, flush=True)
process.wait()
"""


def test_binaries_end_when_the_runner_is_killed(tmp_path, monkeypatch):
  monkeypatch.setenv("FAKE_WAITS", "fed_avg")
  with subprocess.Popen(
    [
      sys.executable,
      "-c",
      _PARENT,
      child.__file__,
      "--algorithm=fed_avg",
      "--resume=auto",
      f"--output_dir={tmp_path}/run",
    ],
    stdout=subprocess.PIPE,
    text=True,
    env=os.environ,
  ) as parent:
    process = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    psutil.wait_procs([process])
  assert not process.is_running()


def test_all_settings_show_the_oracles_selection(
  tmp_path, run_reproduce, pages
):
  folder = tmp_path / "out"
  arguments = [
    *("demo/digits", f"--output_dir={folder}", "--full"),
    "--only=fed_avg,pooled,majority_class",
    f"--columns={_IID.removeprefix('rotated_digits_')}",
  ]
  assert run_reproduce(*arguments, "--flags=--all_settings") == 0
  (made,) = pages
  # More runs on the test data reduce nothing, and change no setting.
  assert made.is_full
  assert "all settings" not in {line.name for line in made.protocol}
  cells = {
    cell.row: cell
    for cell in made.cells
    if cell.by_seed and cell.column[-1] == "client"
  }
  cell = cells["FedAvg"]
  assert [(each.label, each.is_selected) for each in cell.trials] == [
    ("learning rate 0.0003", False),
    ("learning rate 0.001", False),
    ("learning rate 0.003", True),
  ]
  assert cell.trials[-1].by_seed == cell.by_seed
  assert cell.trials[0].by_seed[0] == pytest.approx(1.2 * 7 + 0.003)
  assert (cell.budget.num_settings, cell.budget.num_rounds) == (3, 5)
  assert made.references == ["FedAvg"]
  # Bounds of the selected setting are a floor and a ceiling.
  for names, value in ((made.floors, 10.0), (made.ceilings, 90.0)):
    assert set(cells[names[0]].by_seed.values()) == {value}
  # The command can be pasted.
  read = json.loads((folder / cell.run.folder / "config.json").read_text())
  started = shlex.split(read["command_line"])[3:]
  assert sorted(started) == sorted(
    ["--resume=auto", *shlex.split(cell.run.command)[3:]]
  )
