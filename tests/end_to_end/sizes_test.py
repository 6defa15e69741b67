"""Sizes that cannot be meant are refused before anything is computed."""

import pytest

from tff_shift._util import memory
from tff_shift.binaries import dynamic_personalization
from tff_shift.binaries import evolving
from tff_shift.binaries import guidance
from tff_shift.binaries import online_adaptation

# A client holds 10 examples of a domain, 2 of them for testing. The last domain
# is the target: 2 clients train on 8 of each of 2 domains.
_EVOLVING = (
  *("--algorithm=fed_avg", "--dataset=rotated_digits", "--num_domains=3"),
  *("--max_examples_per_domain=20", "--num_clients=2"),
)
_NUM_EXAMPLES = 32
_ONLINE = ("--algorithm=source", "--dataset=digits", "--model_width=8")
_DYNAMIC = (
  *("--algorithm=fed_3da", "--dataset=digits", "--num_clients=3"),
  "--period_size=20",
)
_GUIDANCE = (
  *("--algorithm=fed_avg", "--dataset=digits", "--partition=dirichlet_0.3"),
  *("--intensity=none", "--max_examples=200"),
)


@pytest.fixture
def little_memory(monkeypatch):
  monkeypatch.setattr(memory, "limit", lambda: 4 * 2**30)


_TOO_MUCH = {
  (evolving, _EVOLVING): [
    (
      "--batch_size=33",
      f"--batch_size=33: it must be at most {_NUM_EXAMPLES}, the number of",
    ),
    (
      "--batch_size=10000000",
      "--batch_size=10000000 of shape [28, 28, 1]: this would need 29.2 GiB",
    ),
    (
      "--batch_size=1000000000",
      "--batch_size=1000000000 is not allowed: it must be at most 10000000",
    ),
    (
      "--batch_size=32 --local_steps=10000000000",
      "--local_steps=10000000000 is not allowed: it must be at most 10000000",
    ),
    ("--num_clients=10000000", "whose 20 examples are too few for 10000000 cl"),
    (
      "--model=mlp --model_width=10000000",
      # 784 * 10**7 numbers of 12 bytes: the first weight is too large.
      "classes, width=10000000: this would need 87.6 GiB",
    ),
    (
      "--algorithm=cfed --public_examples=10000000",
      "public_examples=10000000: 7.3 GiB of inputs [28, 28, 1]; a graph can",
    ),
  ],
  (online_adaptation, _ONLINE): [
    (
      "--num_clients=10000000",
      "--num_clients=10000000 with --samples_per_step=50 and",
    ),
    ("--samples_per_step=10000000", "with --samples_per_step=10000000 and"),
    (
      "--algorithm=fed_poe --max_snapshots=10000000",
      "fed_poe with max_snapshots=10000000, the state of the server: this",
    ),
  ],
  (dynamic_personalization, _DYNAMIC): [
    (
      "--num_clients=10000000",
      "--num_clients=10000000 with --period_size=20: this would need",
    ),
    ("--batch_size=61", "--batch_size=61: it must be at most 60"),
    (
      "--hidden_width=10000000",
      "fed_3da with hidden_width=10000000, the state of the server: this",
    ),
    (
      "--num_hidden=10000000",
      "--num_hidden=10000000 is not allowed: it must be an integer at least 1",
    ),
  ],
  (guidance, _GUIDANCE): [
    (
      "--num_clients=10000000",
      "num_clients=10000000: there are 200 examples, and each client must",
    )
  ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("scenario", "flags", "message"),
  [(each, *row) for each, rows in _TOO_MUCH.items() for row in rows],
  ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("little_memory")
def test_size_that_cannot_be_is_named(scenario, flags, message, refused):
  binary, small = scenario
  assert message in refused(binary, [*small, *flags.split()])


@pytest.mark.usefixtures("little_memory")
def test_batch_of_a_preset_may_be_larger_than_the_data(
  run_here, refused, tmp_path, monkeypatch
):
  make_plan = evolving.planning.make_plan

  def make_and_end():
    make_plan()
    raise SystemExit(0)

  # The preset has batches of 32.
  arguments = ["--preset=demo", *_EVOLVING[2:], "--max_examples_per_domain=10"]
  with monkeypatch.context() as patches:
    patches.setattr(evolving.planning, "make_plan", make_and_end)
    assert run_here(evolving, arguments) == 0
  file = tmp_path / "mine.flags"
  file.write_text("--batch_size=32\n")
  for given in ("--batch_size=32", f"--flagfile={file}"):
    line = refused(evolving, [*arguments, given])
    assert "--batch_size=32: it must be at most 16," in line
