"""Sizes that cannot be meant: those of presets. Others: `refusals_test`."""

import sys

from tff_shift.binaries import evolving

# A client holds 10 examples of a domain, 2 of them for testing. The last domain
# is the target: 2 clients train on 8 of each of 2 domains.
_PRESET = """
  --preset=demo --dataset=rotated_digits --num_domains=3 --num_clients=2
  --max_examples_per_domain=10
"""


def test_batch_of_a_preset_may_be_larger_than_the_data(
  run_here, refused, tmp_path, monkeypatch
):
  make_plan = evolving.planning.make_plan
  # The preset has batches of 32.
  with monkeypatch.context() as patches:
    patches.setattr(
      evolving.planning, "make_plan", lambda: sys.exit(not make_plan())
    )
    assert run_here(evolving, _PRESET) == 0
  file = tmp_path / "mine.flags"
  file.write_text("--batch_size=32\n")
  for given in ("--batch_size=32", f"--flagfile={file}"):
    line = refused(evolving, [_PRESET, given])
    assert "--batch_size=32: it must be at most 16," in line
