"""Runs that go on with more rounds or seeds end as if they had begun so."""

import json

import pytest

from benchmarks import resume
from experiments import dynamic_personalization
from experiments import dynamic_personalization_plan
from experiments import evolving
from experiments import evolving_plan
from experiments import guidance
from experiments import guidance_plan
from experiments import online_adaptation
from experiments import online_adaptation_plan

pytestmark = pytest.mark.slow

_DIGITS = ("--dataset=digits", "--num_clients=3", "--noprogress")
# Personal states, and every third round is saved and evaluated.
_SMALL = {
  evolving: (
    "--dataset=circle",
    "--num_domains=3",
    "--max_examples_per_domain=60",
    "--num_clients=3",
    "--participation=0.7",
    "--local_steps=1",
    "--algorithm=fed_rep",
    "--noprogress",
    "--evaluate_every=3",
    "--checkpoint_every=3",
  ),
  guidance: (
    *_DIGITS,
    "--max_examples=300",
    "--model=mlp",
    "--model_width=4",
    "--local_steps=1",
    "--algorithm=fed_drm,fed_avg_ft",
    "--evaluate_every=3",
    "--final_rounds=2",
    "--checkpoint_every=3",
  ),
  dynamic_personalization: (
    *_DIGITS,
    "--max_examples=600",
    "--algorithm=local",
    "--period_size=20",
    "--periods=2",
    "--test_distributions=iid,0.9",
    "--model=mlp",
    "--model_width=4",
    "--distance_threshold=1",
    "--checkpoint_every=2",
  ),
  online_adaptation: (
    *_DIGITS,
    "--algorithm=fed_ade",
    "--model=mlp",
    "--model_width=4",
    "--timesteps=2",
    "--samples_per_step=10",
    "--initial_examples=20",
    "--pretraining_epochs=1",
  ),
}
_PLANS = {
  evolving: evolving_plan,
  guidance: guidance_plan,
  dynamic_personalization: dynamic_personalization_plan,
  online_adaptation: online_adaptation_plan,
}


@pytest.fixture
def run(run_here, tmp_path):
  """Returns `run(binary, folder, *flags) -> exit code`."""

  def run_binary(binary, folder, *flags):
    return run_here(
      binary,
      _PLANS[binary],
      [*_SMALL[binary], f"--output_dir={tmp_path / folder}", *flags],
    )

  return run_binary


@pytest.mark.parametrize(
  "binary, rounds, more",
  [
    # The seventh is evaluated as the last; the sixth would be in any case, but
    # in all domains as the last.
    (evolving, (7, 10), ()),
    (evolving, (6, 7), ("--max_states_in_memory=1",)),
    (guidance, (7, 10), ("--cosine_rounds=20", "--fine_tuning_steps=2")),
    (dynamic_personalization, (3, 5), ()),
  ],
)
def test_more_rounds(binary, rounds, more, run, tmp_path):
  before, after = (f"--rounds={each}" for each in rounds)
  assert run(binary, "whole", *more, after, "--seeds=0,1") == 0
  assert run(binary, "run", *more, before, "--seeds=0") == 0
  assert run(binary, "run", *more, after, "--seeds=0,1", "--resume") == 0
  assert resume.differences(tmp_path / "whole", tmp_path / "run") == []
  # And as it is now, it goes on.
  assert run(binary, "run", *more, after, "--seeds=0,1", "--resume") == 0
  assert resume.differences(tmp_path / "whole", tmp_path / "run") == []
  config = json.loads((tmp_path / "run" / "config.json").read_text())
  assert config["flags"]["rounds"] == rounds[1]
  assert config["begun_with"] == {"rounds": rounds[0], "seeds": ["0"]}


def test_most_rounds_are_not_done_again(run, tmp_path, monkeypatch):
  assert run(evolving, "run", "--rounds=7", "--seeds=0") == 0
  done = []
  step = evolving.evolving.rounds.Rounds.step
  monkeypatch.setattr(
    evolving.evolving.rounds.Rounds,
    "step",
    lambda self: done.append(self.round_num) or step(self),
  )
  assert run(evolving, "run", "--rounds=9", "--seeds=0", "--resume") == 0
  assert done == [6, 7, 8]


def test_more_seeds_of_streams(run, tmp_path):
  assert run(online_adaptation, "whole", "--seeds=0,1") == 0
  assert run(online_adaptation, "run", "--seeds=0") == 0
  assert run(online_adaptation, "run", "--seeds=0,1", "--resume") == 0
  assert resume.differences(tmp_path / "whole", tmp_path / "run") == []


@pytest.mark.parametrize(
  "binary, before, after, message",
  [
    (evolving, ["--rounds=3"], ["--rounds=2"], "--rounds was 3 and is 2\n"),
    (
      evolving,
      ["--rounds=1", "--seeds=0,1"],
      ["--rounds=1", "--seeds=1,0,2"],
      "--seeds was 0,1 and is 1,0,2\n",
    ),
    (
      evolving,
      ["--rounds=2", "--algorithm=cfl"],
      ["--rounds=3", "--algorithm=cfl"],
      "--rounds was 2 and is 3, on which --task_rounds depends where it is not"
      " set (it was 2 and would be 3); start anew in another folder\n",
    ),
    (
      guidance,
      ["--rounds=3", "--algorithm=fed_drm"],
      ["--rounds=4", "--algorithm=fed_drm"],
      "--rounds was 3 and is 4, on which --cosine_rounds depends where it is"
      " not set (it was 3 and would be 4); start anew in another folder\n",
    ),
    (
      online_adaptation,
      ["--timesteps=2"],
      ["--timesteps=3"],
      "--timesteps was 2 and is 3, on which the drift of --shift=linear"
      " depends; start anew in another folder\n",
    ),
  ],
)
def test_what_would_be_another_run_is_refused(
  binary, before, after, message, run, capsys
):
  assert run(binary, "run", *before) == 0
  capsys.readouterr()
  assert run(binary, "run", *after, "--resume") == 2
  (line,) = capsys.readouterr().err.splitlines(keepends=True)
  assert message in line
