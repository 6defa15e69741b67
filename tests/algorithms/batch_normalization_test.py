"""Models with batch normalisation in what adapts to a batch."""

import numpy as np
import pytest

from tff_shift import algorithms

pytestmark = pytest.mark.slow

STREAM = 9, 7


@pytest.mark.parametrize(
  "name, options",
  [("cotta", {"confidence_threshold": 0.0}), ("fed_ctta", {}), ("shot", {})],
)
def test_batch_is_normalized_by_itself(
  name,
  options,
  build,
  normalized_model,
  normalized_weights,
  client,
  make_client,
  oracle,
):
  examples = make_client(5, [7])
  functions = build(algorithms.hparams(name, **options), model=normalized_model)
  assert functions.predicts_batches
  shared = functions.initial_weights(client.seed)
  state = functions.initial_client_state(client.seed, shared)
  np.testing.assert_allclose(
    functions.predict_as_client(shared, state, client, examples),
    oracle.normalize(normalized_weights, examples.x),
    atol=1e-5,
  )


def test_batches_are_not_predicted_by_statistics_of_the_source(
  build, normalized_model
):
  hparams = algorithms.hparams("shot", normalize_by="source")
  assert not build(hparams, model=normalized_model).predicts_batches
