"""What `--progress` prints where standard error is no terminal."""

import itertools
import re

import pytest

from tff_shift.command_line import common_flags
from tff_shift.reporting import progress

pytestmark = pytest.mark.slow

_VALUES = r"(, loss [\d.e+-]+)?(, accuracy [\d.]+%)?"
_TIME = r"(, \d\d:\d\d left(, about \d\d:\d\d for all runs)?)?"


@pytest.fixture
def lines(run, monkeypatch, tmp_path):
  """Returns `lines(binary, flags)`: titles and counts; a line is always due."""
  # There may be a folder of a cache.
  monkeypatch.chdir(tmp_path)
  clock = itertools.count(0, 31)
  printer = progress.LinePrinter(clock=lambda: next(clock))
  monkeypatch.setattr(common_flags, "_PRINTER", printer)

  def read(binary, flags):
    found = []
    for line in run(binary, flags, "--progress").errors.splitlines():
      match = re.fullmatch(rf"(.+): (.+) (\d+) of (\d+){_VALUES}{_TIME}", line)
      found.append((match[1], match[2], int(match[3]), int(match[4])))
    return found

  return read


@pytest.mark.long
def test_choice_is_counted_also_where_settings_diverge(lines):
  found = lines(
    "evolving",
    """
    --algorithm=fed_avg --dataset=circle --num_domains=3
    --max_examples_per_domain=40 --num_clients=2 --rounds=2
    --learning_rate=1e-2,1e30 --select=last_source --seeds=0,1
    --checkpoint_every=0
    """,
  )
  titles = list(dict.fromkeys(title for title, *_ in found))
  numbers = [int(re.search(r"\(run (\d+) of 6\)$", each)[1]) for each in titles]
  # Two settings with two seeds, then one of them. One that diverges with a seed
  # does not run with the next.
  assert numbers == [1, 2, 3, 5, 6]
  assert titles[0] == (
    "fed_avg, learning rate 0.01, last_source, seed 0 (run 1 of 6)"
  )
  assert titles[-1].startswith("fed_avg, learning rate 0.01, target, seed 1")
  of_first = [row[1:] for row in found if row[0] == titles[0]]
  assert of_first == [("round", done, 2) for done in (0, 1, 2)]


@pytest.mark.long
def test_what_comes_before_the_runs_is_told(lines):
  found = lines(
    "online_adaptation",
    """
    --algorithm=source,fix_lr --dataset=digits --shift=linear,square --model=mlp
    --model_width=4 --num_clients=2 --timesteps=2 --initial_examples=20
    --samples_per_step=20 --pretraining_epochs=2 --max_pretraining_examples=200
    """,
  )
  assert found[:3] == [
    ("pre-trained model, 200 examples", "epoch", done, 2) for done in (0, 1, 2)
  ]
  assert found[3:] == [
    (f"{name}, {shift}, seed 0 (run {number} of 4)", "time step", done, 2)
    for number, (name, shift) in enumerate(
      itertools.product(("source", "fix_lr"), ("linear", "square")), start=1
    )
    for done in (0, 1, 2)
  ]


def test_use_is_told_as_training_is(lines):
  flags = """
    --algorithm=local --dataset=digits --max_examples=600 --num_clients=2
    --rounds=1 --period_size=20 --periods=2 --test_distributions=iid --model=mlp
    --model_width=4 --distance_threshold=1
  """
  assert lines("dynamic_personalization", flags) == [
    *[("distances, iid, seed 0", "period", done, 2) for done in (0, 1, 2)],
    *[
      ("local, test, seed 0 (run 1 of 1)", "round or period", done, 3)
      for done in (0, 1, 2, 3)
    ],
  ]
