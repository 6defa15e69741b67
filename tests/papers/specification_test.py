"""Every cell of the papers has its runs, or the reason why it has none."""

import copy
import math
import os
import re

import hypothesis
import pytest
from hypothesis import strategies as st

from experiments.papers import checks
from experiments.papers import costs
from experiments.papers import job as job_lib
from experiments.papers import papers
from experiments.papers import plan_file
from experiments.papers import reductions
from experiments.papers import specification
from experiments.papers import table
from experiments.papers import templates
from tests.fixtures import tables
from tests.fixtures.refusals import refused
from tff_shift._util import records
from tff_shift.reporting.pages import contents as contents_lib

_NOTHING = reductions.Reductions()
_ONE = reductions.Reductions({"num_settings": "1"})


@pytest.fixture(scope="module")
def everything_at_hand(tmp_path_factory):
  """A folder of data sets in which all are found."""
  folder = tmp_path_factory.mktemp("data")
  for name in specification.names():
    for dataset in specification.load(name).datasets.values():
      for needed in dataset.needs:
        (folder / needed).mkdir(parents=True, exist_ok=True)
  return folder


def test_every_table_of_the_papers_has_a_specification():
  printed = {
    f"{name}/{cell.table}"
    for name in papers.names()
    for cell in papers.get(name).cells
  }
  assert set(specification.names()) >= printed


@pytest.mark.parametrize("name", specification.names())
def test_every_cell_has_runs_or_a_reason(name, everything_at_hand, tmp_path):
  spec = specification.load(name)
  checks.check(spec)
  with_data = job_lib.plan(spec, _NOTHING, data_dir=everything_at_hand)
  without = job_lib.plan(spec, _NOTHING, data_dir=tmp_path)
  printed = [each.wanted.printed for each in with_data if each.wanted.printed]
  paper, _, table = name.partition("/")
  if paper in papers.names():
    assert printed == papers.get(paper).table(table)
  for each in with_data:
    if spec.computed:
      assert each.job is None and not each.absent
      continue
    assert (each.job is None) == each.absent.startswith("paper only: ")
    if each.job is not None:
      assert each.reads and "{" not in each.reads
      assert each.job.flags["algorithm"]
  assert len({(each.row, each.column) for each in with_data}) == len(with_data)
  # Without data only what needs no folder is left.
  left = {each.wanted.dataset for each in without if each.job}
  assert not any(spec.datasets[dataset].needs for dataset in left)


@pytest.fixture
def planned_of(tmp_path):
  """Returns `planned(name, *folders)`: the cells, with runs but no data."""

  def plan(name, *folders, reduced=_NOTHING):
    for folder in folders:
      run = tmp_path / folder / "of_a_method.job.json"
      run.parent.mkdir(parents=True, exist_ok=True)
      run.write_text('{"arguments": []}')
    runs_in = [tmp_path, tmp_path / "runs"]
    made = table.Table(name, data_dir=tmp_path / "data", runs_in=runs_in)
    return made.planned(reduced, {})

  return plan


def datasets_of(planned):
  """The data sets whose cells have a job."""
  return {each.wanted.dataset for each in planned if each.job}


def test_runs_are_read_where_their_data_are_not(planned_of):
  # Runs on corrupted images are none on the others.
  planned = planned_of("fed_ade/1", "cifar10_corrupted_shift_linear")
  assert datasets_of(planned) == {"cifar10_corrupted"}
  planned = planned_of("fed_3da/1", "runs/cifar10")
  assert datasets_of(planned) == {"cifar10"}
  assert {
    each.absent for each in planned if each.wanted.dataset == "fashion_mnist"
  } == {"paper only: Fashion-MNIST is not available (no folder fashion_mnist)"}
  assert job_lib.chosen(planned, columns=["cifar10"])


def test_reduction_need_not_suit_data_without_runs(planned_of):
  # Rates of Circle; those of Portraits and Caltran are others.
  rates = reductions.Reductions({"learning_rate": "1e-5:1e-4"})
  planned = planned_of("fed_evolve/3", reduced=rates)
  assert datasets_of(planned) == {"circle"}
  with refused("learning_rate"):
    planned_of("fed_evolve/3", "portraits", reduced=rates)


@pytest.mark.parametrize(
  "name, columns, reasons",
  [
    ("fed_3da/1", "cifar10", "no folder cifar10"),
    # Each reason, not that of the first data set alone.
    (
      "fed_ade/1",
      "cifar10_corrupted_",
      "no folder tiny-imagenet-200.*; .*no folder cifar10",
    ),
  ],
)
def test_no_column_can_run_without_its_data(name, columns, reasons, tmp_path):
  planned = job_lib.plan(specification.load(name), _NOTHING, data_dir=tmp_path)
  with refused(f"no columns to run: .*{reasons}"):
    job_lib.chosen(planned, columns=[columns])


def test_methods_get_the_same_values_and_their_own_flags(everything_at_hand):
  evolve, ade = (
    {
      job.method: job
      for job in job_lib.chosen(
        job_lib.plan(
          specification.load(name), _NOTHING, data_dir=everything_at_hand
        )
      )
    }
    for name in ("fed_evolve/1", "fed_ade/1")
  )
  common = {
    "learning_rate": ["1e-3", "1e-2", "1e-1"],
    "select": "last_source",
    "seeds": [0, 1, 2],
    "selection_seeds": [0],
  }
  for job in evolve.values():
    assert common.items() <= job.flags.items()
  assert evolve["gma"].flags["agreement_threshold"] == 0.1
  assert evolve["memo_personal"].flags["personalized"] is True
  assert "personalized" not in evolve["memo_global"].flags
  assert evolve["fed_avg"].folder == "rotated_mnist_dirichlet_0.1/fed_avg"
  # Flags of others are left out.
  assert "local_epochs" not in ade["fth"].flags
  assert ade["fed_ade"].flags["eta_min"] == "5e-6"
  assert "eta_min" not in ade["fix_lr_low"].flags
  assert [
    ade[f"fix_lr_{name}"].flags["learning_rate"]
    for name in ("low", "mid", "high")
  ] == [5e-6, 1e-5, 1e-4]


def load(path):
  return specification.load(str(path))


_GOOD = """
name = "mine/1"
title = "Mine"
binary = "evolving"
[ours]
datasets = ["circle"]
methods = ["fed_avg"]
metrics = ["accuracy"]
[datasets.circle]
preset = "circle"
[methods.fed_avg]
algorithm = "fed_avg"
[metrics.accuracy]
reads = "client_accuracy"
"""


@pytest.mark.parametrize(
  "old, new, message",
  [
    *tables.cases(r"""
'title = "Mine"', "titel = 1"
    unknown field `titel`
'title = "Mine"', ""
    missing required field `title`
'"evolving"', '"evolve"'
    binary: it must be one of dyn
'["circle"]', '["square"]'
    'square', which a cell has, is missing
'preset = "circle"', 'preset = "c"'
    datasets.circle.preset:
"[methods.", 'flags.rounds = "x"\n[methods.'
    circle.flags.rounds:
"[methods.", "flags.round = 1\n[methods."
    no flag --round
'algorithm = "fed_avg"', 'algorithm = "a"'
    no algorithm 'a'
"[ours]", "seeds = [0, 1, 0]\n[ours]"
    seeds: .*duplicates.* \[0, 1, 0\]
"[ours]", "seeds = []\n[ours]"
    `array` of length >= 1 - at .*seeds
"[ours]", "selection_seeds = [1]\n[ours]"
    must be a subset of seeds
"[ours]", 'decisions = ["None"]\n[ours]'
    no file 'None' has choices
"[ours]", 'rungs = ["rounds=50%", "round=1"]\n[ours]'
    rungs\[1\]:
"[ours]", 'rungs = ["learning_rate=7"]\n[ours]'
    rungs\[0\]: .*paper's
"[ours]", "flags.seeds = 1\n[ours]"
    flags.seeds: --seeds is not allowed
"[ours]", 'flags.rounds = ["x"]\n[ours]'
    flags.rounds: --rounds=x:
"[ours]", 'grid.momentum = "x"\n[ours]'
    grid.momentum:
"[ours]", 'floors = ["pooled"]\n[ours]'
    floors: there is no method
"[methods.", '[methods."../x"]\nabsent="a"\n[methods.'
    '../x' must consist
"reads =", "divided_by = nan\nreads ="
    `float` > 0.*divided_by
'"client_', '"{x}_'
    accuracy.reads: \{x\} in .* is not allowed
"[datasets.", '[settings.a]\nlabel = "{x.__class__}"\n[datasets.'
    \{x.__class__\} in .* is not allowed; .* \{\} - at .*settings
"[ours]", "[ours"
    .toml:
"""),
    (
      "[ours]",
      '[[differs]]\nname="a"\npaper="b"\nours="c"\nprogram="d"\n[ours]',
      r"program needs reason.* - at .*differs\[0\]",
    ),
    (
      "[ours]",
      '[[programs]]\ndataset="circle"\nmethod="fed_avg"\nmetric="loss"\n'
      'mean=1.0\nnote="Why."\n[ours]',
      r"programs\[0\]: mine/1 has no such cell",
    ),
  ],
)
def test_what_is_wrong_is_named(tmp_path, old, new, message):
  path = tmp_path / "mine.toml"
  path.write_text(_GOOD)
  checks.check(load(path))
  path.write_text(_GOOD.replace(old, new, 1))
  with pytest.raises(specification.SpecificationError, match=message) as found:
    checks.check(load(path))
  assert "\n" not in str(found.value)
  assert "mine" in str(found.value)


def test_a_table_that_there_is_not():
  with pytest.raises(specification.SpecificationError, match="unknown table"):
    specification.load("fed_evolve/99")


def test_files_start_from_files_and_the_wrong_one_is_named(tmp_path, refusal):
  (tmp_path / "below").mkdir()
  lowest, middle = (tmp_path / "below" / f"{name}.toml" for name in "ab")
  top = tmp_path / "c.toml"
  lowest.write_text(_GOOD)
  start = 'base = "below/b"\ntitle = "Top"\n'
  top.write_text(start)
  middle.write_text('base = "a"\ntitle = "Middle"\nseeds = [0, 7]\n')
  found = load(top)
  assert found.title == "Top"
  assert list(found.seeds) == [0, 7]
  assert found.datasets["circle"].preset == "circle"
  middle.write_text('base = "a"\nseeds = [0, 1]\nselection_seeds = [0.5]\n')
  for key, named in (
    ("seeds = [0]\n", middle),
    ("selection_seeds = [0]\n", None),
    ("selection_seeds = [true]\n", top),
    ("seeds = 3\n", top),
  ):
    top.write_text(start + key)
    if named is None:
      load(top)
    else:
      assert refusal(load, top).startswith(f"{named}: Expected ")
  for base, message in (
    ("x", f"base: there is no file {middle.parent / 'x.toml'}"),
    ("../c", "extends itself"),
  ):
    middle.write_text(f'base = "{base}"\n')
    assert message in refusal(load, top)
  lowest.unlink()
  os.mkfifo(lowest)
  assert "a named pipe" in refusal(load, lowest)


def _planned(tmp_path, more):
  path = tmp_path / "mine.toml"
  path.write_text(_GOOD + more)
  return load(path)


def test_cells_that_a_page_could_not_tell_apart_are_refused(tmp_path):
  spec = _planned(
    tmp_path,
    '[methods.second]\nalgorithm = "fed_avg"\nlabel = "fed_avg"\n'
    "[datasets.circle.methods.second]\nlearning_rate = 1.0\n"
    '[settings.a]\nflag = "dirichlet"\n',
  )

  def with_ours(**changes):
    return spec.replace(ours=spec.ours.replace(**changes))

  with refused("two cells have the row 'fed_avg'"):
    checks.check(with_ours(methods=("fed_avg", "second")))
  # Both would be the folder circle_a_1_0.
  assert job_lib.plan(with_ours(settings={"a": ("1e0", "1_0")}), _ONE)
  with refused("one folder, circle_a_1_0/fed_avg"):
    job_lib.plan(with_ours(settings={"a": ("1+0", "1_0")}), _ONE)


@pytest.mark.parametrize(
  "flags, message",
  tables.rows("""
learning_rate = -1.0
    --learning_rate=-1.0 is not allowed
evaluate_every = 0
    --evaluate_every=0: it must be
dirichlet = "0"
    --dirichlet=0: it must be a number above 0
eta_min = 1.0
    no flag --eta_min
"""),
)
def test_the_binary_refuses_a_table_before_anything_is_written(
  flags, message, tmp_path, run_reproduce, fake_binaries, capsys
):
  path = tmp_path / "mine.toml"
  path.write_text(_GOOD + f"[methods.fed_avg.flags]\n{flags}\n")
  folder = tmp_path / "out"
  arguments = [str(path), "--reduce=num_settings=1", f"--output_dir={folder}"]
  assert run_reproduce(*arguments) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert "mine/1: " in line and message[0] in line
  assert not folder.exists()


def test_a_table_needs_no_flags_of_a_preset(tmp_path, run_reproduce, pages):
  path = tmp_path / "mine.toml"
  path.write_text(_GOOD.replace('preset = "circle"', ""))
  folder = f"--output_dir={tmp_path / 'out'}"
  assert run_reproduce(str(path), "--full", "--page_only", folder) == 0
  (job,) = job_lib.chosen(job_lib.plan(load(path), _NOTHING))
  # Ten rounds, evaluated after every five, as the binary has it.
  assert costs.num_evaluations(job) == 2
  assert costs.seconds(job) > costs.training_seconds(job) > 0


def test_templates_know_plain_names_only():
  values = {"": 1.5, "a": "{b}"}
  assert templates.fill("{} {a} {{a}}", values) == "1.5 {b} {a}"
  for part in ("{0}", "{a.b}", "{a[0]}", "{a!r}", "{:>9}", "{a", "b}", "{ }"):
    with refused(re.escape(part[:1])):
      templates.fill(part, values)


_FIELDS = specification.load("fed_ade/4").to_fields()
_OTHER = st.sampled_from(
  [None, True, -1, 10**30, math.nan, math.inf, "", "{x}", [], [[]], {}, "a/b"]
)


@pytest.mark.slow
@hypothesis.given(st.data())
@hypothesis.settings(max_examples=200)
def test_any_change_of_a_table_is_planned_or_refused_in_one_line(data):
  fields = copy.deepcopy(_FIELDS)
  at, name = fields, data.draw(st.sampled_from(sorted(fields)))
  while isinstance(at[name], dict) and at[name] and data.draw(st.booleans()):
    at, name = at[name], data.draw(st.sampled_from(sorted(at[name])))
  if data.draw(st.booleans()):
    del at[name]
  else:
    at[name] = data.draw(_OTHER)
  try:
    spec = records.convert(fields, specification.Specification)
    checks.check(spec)
  except ValueError as error:
    assert "\n" not in str(error)


def test_value_of_a_program_is_that_of_its_cell(tmp_path):
  path = tmp_path / "mine.toml"
  path.write_text(
    _GOOD + '[[programs]]\ndataset = "circle"\nmethod = "fed_avg"\n'
    'metric = "accuracy"\nmean = 61.5\nnum_seeds = 1\nnote = "Read in a log."\n'
  )
  made = table.Table(str(path))
  planned = made.planned(_ONE, {})
  contents = made.contents(
    plan_file.Plan(reduce={"num_settings": "1"}),
    planned,
    tmp_path / "out",
    "",
    {},
  )
  (cell,) = contents.cells
  assert cell.program == contents_lib.PaperValue(
    mean=61.5, num_seeds=1, note="Read in a log."
  )
  assert cell.paper is None
