"""Every cell of the papers has its runs, or the reason why it has none."""

import pytest

from experiments.reproduction import binary_flags
from experiments.reproduction import jobs
from experiments.reproduction import papers
from experiments.reproduction import reductions
from experiments.reproduction import specification
from experiments.reproduction import table

_NOTHING = reductions.Reductions()


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
  own = {"demo/digits", "fed_drm/figure_4"}
  assert set(specification.names()) == printed | own


@pytest.mark.parametrize("name", specification.names())
def test_every_cell_has_runs_or_a_reason(name, everything_at_hand, tmp_path):
  spec = specification.load(name)
  binary_flags.check_specification(spec)
  with_data = jobs.plan(spec, _NOTHING, data_dir=everything_at_hand)
  without = jobs.plan(spec, _NOTHING, data_dir=tmp_path)
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
  # Without data only what is generated or embedded is left.
  left = {each.wanted.dataset for each in without if each.job}
  assert left <= {"circle", "rotated_digits"}


def test_runs_are_read_where_their_data_are_not(tmp_path):
  run = tmp_path / "runs" / "cifar10" / "fed_avg.job.json"
  run.parent.mkdir(parents=True)
  run.write_text('{"arguments": []}')
  planned = table.Table(
    "fed_3da/1", data_dir=tmp_path, runs_in=[tmp_path, tmp_path / "runs"]
  ).planned(_NOTHING, {})
  assert {each.wanted.dataset for each in planned if each.job} == {"cifar10"}
  assert {
    each.absent for each in planned if each.wanted.dataset == "fashion_mnist"
  } == {"paper only: Fashion-MNIST is not at hand (no folder fashion_mnist)"}
  assert jobs.chosen(planned, columns=["cifar10"])


def test_runs_on_corrupted_images_are_none_on_the_others(tmp_path):
  run = tmp_path / "cifar10_corrupted_shift_linear" / "source.job.json"
  run.parent.mkdir()
  run.write_text('{"arguments": []}')
  planned = table.Table(
    "fed_ade/1", data_dir=tmp_path, runs_in=[tmp_path]
  ).planned(_NOTHING, {})
  assert {each.wanted.dataset for each in planned if each.job} == {
    "cifar10_corrupted"
  }


def test_reduction_need_not_suit_data_without_runs(tmp_path):
  # Rates of Circle; those of Portraits and Caltran are others.
  rates = {"learning_rate": "1e-5:1e-4"}
  planned = table.Table(
    "fed_evolve/3", data_dir=tmp_path, runs_in=[tmp_path]
  ).planned(reductions.Reductions(rates), {})
  assert {each.wanted.dataset for each in planned if each.job} == {"circle"}
  (tmp_path / "portraits").mkdir()
  (tmp_path / "portraits" / "gma.job.json").write_text('{"arguments": []}')
  with pytest.raises(ValueError, match="learning_rate"):
    table.Table("fed_evolve/3", data_dir=tmp_path, runs_in=[tmp_path]).planned(
      reductions.Reductions(rates), {}
    )


@pytest.mark.parametrize(
  ("name", "columns", "reasons"),
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
  planned = jobs.plan(specification.load(name), _NOTHING, data_dir=tmp_path)
  with pytest.raises(ValueError, match=f"no columns to run: .*{reasons}"):
    jobs.chosen(planned, columns=[columns])


def test_methods_get_the_same_values_and_their_own_flags(everything_at_hand):
  planned = jobs.plan(
    specification.load("fed_evolve/1"), _NOTHING, data_dir=everything_at_hand
  )
  found = {job.method: job for job in jobs.chosen(planned)}
  for job in found.values():
    assert job.flags["learning_rate"] == ["1e-3", "1e-2", "1e-1"]
    assert job.flags["select"] == "last_source"
    assert (job.flags["seeds"], job.flags["selection_seeds"]) == (
      [0, 1, 2],
      [0],
    )
  assert found["gma"].flags["agreement_threshold"] == 0.1
  assert found["memo_personal"].flags["personalized"] is True
  assert "personalized" not in found["memo_global"].flags
  assert found["fed_avg"].folder == "rotated_mnist_dirichlet_0.1/fed_avg"


def test_flags_of_others_are_left_out(everything_at_hand):
  planned = jobs.plan(
    specification.load("fed_ade/1"), _NOTHING, data_dir=everything_at_hand
  )
  found = {job.method: job.flags for job in jobs.chosen(planned)}
  assert "local_epochs" not in found["fth"]
  assert found["fed_ade"]["eta_min"] == "5e-6"
  assert "eta_min" not in found["fix_lr_low"]
  assert [
    found[f"fix_lr_{name}"]["learning_rate"] for name in ("low", "mid", "high")
  ] == [5e-6, 1e-5, 1e-4]


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
    ('title = "Mine"', "titel = 1", "titel: there is no such key"),
    ('title = "Mine"', "title = 1", "title: it must be text"),
    ('title = "Mine"', "", "'title' is missing"),
    ('"evolving"', '"evolve"', "binary: it must be one of"),
    ('["circle"]', '["square"]', "nothing is said of 'square'"),
    ('["fed_avg"]', '["fed_evp"]', "nothing is said of 'fed_evp'"),
    ('["accuracy"]', '["loss"]', "nothing is said of 'loss'"),
    ("reads =", "read =", "metrics.accuracy.read: there is no such key"),
    ('preset = "circle"', 'preset = "c"', "datasets.circle.preset: "),
    ("[methods.", 'flags.rounds = "x"\n[methods.', "circle.flags.rounds: "),
    ("[methods.", "flags.round = 1\n[methods.", "no flag --round"),
    ('algorithm = "fed_avg"', 'algorithm = "a"', "no algorithm 'a'"),
    ("[ours]", "[ours", ".toml: "),
  ],
)
def test_what_is_wrong_is_named(tmp_path, old, new, message):
  path = tmp_path / "mine.toml"
  path.write_text(_GOOD)
  binary_flags.check_specification(specification.load(str(path)))
  path.write_text(_GOOD.replace(old, new, 1))
  with pytest.raises(specification.SpecificationError, match=message) as found:
    binary_flags.check_specification(specification.load(str(path)))
  assert "\n" not in str(found.value).replace("(at line", "")
  assert "mine" in str(found.value)


def test_a_table_that_there_is_not():
  with pytest.raises(specification.SpecificationError, match="no such table"):
    specification.load("fed_evolve/99")


def test_a_file_starts_from_files_in_other_folders(tmp_path):
  (tmp_path / "below").mkdir()
  (tmp_path / "below" / "lowest.toml").write_text(_GOOD)
  middle = 'base = "lowest"\ntitle = "Middle"\nseeds = [0, 7]\n'
  (tmp_path / "below" / "middle.toml").write_text(middle)
  path = tmp_path / "mine.toml"
  path.write_text('base = "below/middle"\ntitle = "Above"\n')
  found = specification.load(str(path))
  assert found.title == "Above"
  assert list(found.seeds) == [0, 7]
  assert found.datasets["circle"].preset == "circle"


def test_a_file_that_starts_from_itself(tmp_path):
  (tmp_path / "a.toml").write_text('base = "b"\n')
  (tmp_path / "b.toml").write_text('base = "a"\n')
  with pytest.raises(specification.SpecificationError, match="from itself"):
    specification.load(str(tmp_path / "a.toml"))
