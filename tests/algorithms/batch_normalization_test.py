"""Models with batch normalisation in what adapts to a batch."""

import numpy as np
import pytest

from tff_shift import algorithms

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
  "name, options",
  [("cotta", {"confidence_threshold": 0.0}), ("fed_ctta", {}), ("shot", {})],
)
def test_batch_is_normalized_by_itself(
  name,
  options,
  build,
  normalized_model,
  make_adapting_client,
  make_client,
  run_in_graph,
):
  client, examples = make_adapting_client(0, 9, 7), make_client(5, [7])
  functions = build(algorithms.hparams(name, **options), model=normalized_model)
  assert functions.predicts_batches
  shared = functions.initial_weights(client.seed)
  state = functions.initial_client_state(client.seed, shared)
  logits = functions.predict_as_client(shared, state, client, examples)
  (kernel, bias, scale, shift), (head, head_bias) = run_in_graph(
    normalized_model.initial_weights, client.seed
  )
  before = examples.x @ kernel + bias
  normed = (before - before.mean(0)) / np.sqrt(before.var(0) + 1e-3)
  expected = np.maximum(normed * scale + shift, 0) @ head + head_bias
  np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_batches_are_not_predicted_by_statistics_of_the_source(
  build, normalized_model
):
  hparams = algorithms.hparams("shot", normalize_by="source")
  assert not build(hparams, model=normalized_model).predicts_batches
