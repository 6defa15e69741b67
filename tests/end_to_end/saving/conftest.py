"""Runs that are compared, file by file, with those of other processes."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def empty_figures():
  """Nothing: figures are drawn."""
