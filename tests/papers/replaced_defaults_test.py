"""Tests of the list of published values that a common flag replaced."""

import io
import json
import tarfile

from experiments.papers import replaced_defaults


def pack(path, rows):
  """Writes an archive of {row: (algorithm, arguments)}."""
  with tarfile.open(path, "w:xz") as packed:
    for row, (algorithm, arguments) in rows.items():
      contents = {
        f"./{row}/config.json": {
          "command_line": " ".join(["python", *arguments])
        },
        f"./{row}/summary.json": {"runs": [{"algorithm": algorithm}]},
      }
      for name, content in contents.items():
        encoded = json.dumps(content).encode()
        member = tarfile.TarInfo(name)
        member.size = len(encoded)
        packed.addfile(member, io.BytesIO(encoded))
  return path


def test_common_arguments_in_place_of_published_rates_are_listed(tmp_path):
  # SHOT's published rate is 1e-3, FedAvg's is not its own.
  archive = pack(
    tmp_path / "table.tar.xz",
    {
      "linear/shot": ("shot", ["--learning_rate=0.01", "--seeds=0,1"]),
      "linear/fed_avg": ("fed_avg", ["--learning_rate=0.01"]),
      # Selected and published values are not listed.
      "a/shot": ("shot", ["--learning_rate=0.01,0.1"]),
      "b/shot": ("shot", ["--learning_rate=0.01,0.1"]),
      "c/shot": ("shot", ["--learning_rate=1e-3"]),
      "d/shot": ("shot", ["--learning_rate=1e-3"]),
      "e/shot": ("shot", ["--learning_rate=0.3"]),
      "a/fix_lr_mean": ("fix_lr_mean", ["--learning_rate=0.3"]),
    },
  )
  first, second = replaced_defaults.replaced(archive)
  assert first == (
    *("table", "linear/shot", "shot", "learning_rate", 1e-3, "0.01", 2),
  )
  assert second.row == "e/shot"
