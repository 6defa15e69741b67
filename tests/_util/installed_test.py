"""Versions of installed packages."""

import sys

from tff_shift._util import installed


def test_version_of_a_package_for_the_cpu(tmp_path, monkeypatch):
  folder = tmp_path / "drums_cpu-2.1.0.dist-info"
  folder.mkdir()
  (folder / "METADATA").write_text("Name: drums-cpu\nVersion: 2.1.0\n")
  assert installed.version("drums") is None
  monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
  assert installed.version("drums") == "2.1.0"
