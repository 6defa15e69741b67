"""Each round from the same state, in process and on TFF's C++ executor."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_shift.execution import local

pytestmark = [pytest.mark.cpp, pytest.mark.slow]

ALGORITHMS = tff.learning.algorithms
SGD = tff.learning.optimizers.build_sgdm(0.1)
SERVER_SGD = tff.learning.optimizers.build_sgdm(1.0)

BUILDERS = {
  "fed_avg": lambda model: ALGORITHMS.build_weighted_fed_avg(
    model, SGD, SERVER_SGD
  ),
  "fed_avg_robust": lambda model: ALGORITHMS.build_weighted_fed_avg(
    model,
    SGD,
    SERVER_SGD,
    model_aggregator=tff.learning.robust_aggregator(),
    loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
  ),
  "unweighted_fed_avg": lambda model: ALGORITHMS.build_unweighted_fed_avg(
    model, tff.learning.optimizers.build_adam(0.01), SERVER_SGD
  ),
  "fed_prox": lambda model: ALGORITHMS.build_weighted_fed_prox(
    model, 0.3, SGD, SERVER_SGD
  ),
  "fed_sgd": lambda model: ALGORITHMS.build_fed_sgd(model, SGD),
  "mime_lite": lambda model: ALGORITHMS.build_weighted_mime_lite(
    model, tff.learning.optimizers.build_sgdm(0.1, 0.9)
  ),
  "fed_eval": ALGORITHMS.build_fed_eval,
}


@pytest.fixture(scope="module")
def cpp():
  with local.local_context() as context:
    yield context


def assert_same(found, expected):
  tree.assert_same_structure(found, expected)
  for ours, theirs in zip(
    tree.flatten(found), tree.flatten(expected), strict=True
  ):
    assert type(ours) is type(theirs)
    assert np.shape(ours) == np.shape(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


# Other functions of tensors in the federated computations of `fed_avg`.
SAME_FORM = ("unweighted_fed_avg", "fed_prox")


@pytest.mark.long
@pytest.mark.parametrize(
  "name",
  [
    pytest.param(
      name, marks=[pytest.mark.every_algorithm] * (name in SAME_FORM)
    )
    for name in BUILDERS
  ],
)
def test_stock_algorithm(run, context, cpp, build_model, client_datasets, name):
  process = BUILDERS[name](build_model())
  state = run(context, process.initialize)
  # The last round is without any client.
  for seed, sizes in enumerate(([20, 13, 0, 7], [5, 20], [])):
    datasets = client_datasets(sizes, seed)
    found = run(context, process.next, state, datasets)
    expected = run(cpp, process.next, state, datasets)
    assert_same(tuple(found), tuple(expected))
    state = found.state


def test_k_means(run, context, cpp):
  process = ALGORITHMS.build_fed_kmeans(3, (2,), random_seed=(1, 2))
  state = run(context, process.initialize)
  assert_same(state, run(cpp, process.initialize))
  generator = np.random.default_rng(0)
  for _ in range(2):
    datasets = [
      tf.data.Dataset.from_tensor_slices(
        generator.normal(size=(size, 2)).astype(np.float32)
      )
      for size in (8, 9, 20)
    ]
    found = run(context, process.next, state, datasets)
    expected = run(cpp, process.next, state, datasets)
    assert_same(tuple(found), tuple(expected))
    state = found.state
