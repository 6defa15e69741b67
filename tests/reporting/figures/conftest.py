"""Figures that are returned."""

import pytest

from tff_shift.reporting.figures import drawing


@pytest.fixture
def kept(monkeypatch):
  """Makes functions that draw return their figure, and write nothing."""
  monkeypatch.setattr(drawing, "save", lambda figure, path: figure)
