"""What tests share: a context for TFF, plain graphs, and a new data set."""

import gc
import sys
import textwrap

import hypothesis
import pytest

from tff_shift.data import datasets

# Before they are imported.
pytest.register_assert_rewrite("tff_shift.testing")

from tff_shift.testing import graphs  # noqa: E402

# The fixtures that all tests share.
context = graphs.context
compile_in_graph = graphs.compile_in_graph
run_in_graph = graphs.run_in_graph
run_for_each = graphs.run_for_each

# What a machine does else decides how long an example takes.
hypothesis.settings.register_profile(
  "tests",
  deadline=None,
  suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")


def pytest_collection_finish():
  """Spares what was imported, and the graphs of tests, most looks for garbage.

  Graphs are built of very many small objects.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(100_000, 20, 50)


_NEW_DATASET = textwrap.dedent(
  '''
  """scikit-learn's digits as they are, 8x8."""

  import numpy as np
  from sklearn import datasets

  from tff_shift.data import dataset
  from tff_shift.data import source


  def _load(folder):
    digits = datasets.load_digits()
    x = (digits.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
    return source.Source(x, digits.target, tuple("0123456789"))


  DATASET = dataset.Dataset(
    shape=(8, 8, 1),
    dtype=np.uint8,
    num_classes=10,
    models={
      "evolving": "cnn",
      "online_adaptation": "mlp",
      "guidance": "guided_cnn",
      "dynamic_personalization": "mlp",
    },
    load=_load,
    evolution=dataset.Evolution(num_domains=4, angle_step=90.0),
  )
  '''
)


@pytest.fixture
def small_digits(tmp_path, monkeypatch):
  """Puts the one file of a new data set where the package finds it.

  It gives the name: scikit-learn's digits at 8x8, for every scenario.
  """
  name = "small_digits"
  (tmp_path / f"{name}.py").write_text(_NEW_DATASET)
  monkeypatch.setattr(datasets, "__path__", [*datasets.__path__, str(tmp_path)])
  yield name
  # What the import has left.
  sys.modules.pop(f"{datasets.__name__}.{name}", None)
  vars(datasets).pop(name, None)
