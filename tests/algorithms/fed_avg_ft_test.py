"""FedAvgFT: FedAvg whose clients predict with a fine-tuned model."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_avg_ft
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

RATE = 0.3


@pytest.mark.parametrize(
  "rate, cosine_rounds, rates",
  [
    # After 2 rounds of 2 steps: rounds 2, 2, 3, 3 and 4 of 5 would follow.
    (0, 5, [RATE * (1 + np.cos(np.pi * r / 5)) / 2 for r in (2, 2, 3, 3, 4)]),
    # Where the rate has fallen to 0 it stays.
    (0, 3, [RATE * (1 + np.cos(np.pi * 2 / 3)) / 2] * 2 + [0] * 3),
    (0, 0, [RATE] * 5),
    (0.01, 5, [0.01] * 5),
  ],
)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fine_tuning_rate_goes_on_falling(
  build, client, weights, oracle, compare, rate, cosine_rounds, rates, momentum
):
  prepared = build(
    fed_avg_ft.HParams(
      batch_size=4,
      local_steps=2,
      learning_rate=RATE,
      momentum=momentum,
      cosine_rounds=cosine_rounds,
      fine_tuning_steps=5,
      fine_tuning_learning_rate=rate,
      # Who is late in a round is not late here.
      straggler_ratio=1.0,
    )
  ).prepare_client(weights, (), client, 2)
  moved = trees.zeros(weights)
  batches = oracle.batches(client, 5, randomness.Purpose.PERSONALIZE)
  for loss, at_rate in zip(oracle.losses(batches), rates, strict=True):
    moved = trees.add(oracle.gradient(loss, weights), moved, momentum)
    weights = trees.add(weights, moved, -at_rate)
  compare.assert_close(prepared, weights, 1e-5)


@pytest.mark.parametrize(
  "num_epochs, given_steps, num_steps",
  # 11 examples are three batches of 4.
  [(2, 0, 6), (2, 4, 4), (0, 1, 1)],
)
def test_fine_tuning_steps_replace_epochs(
  build,
  model,
  client,
  weights,
  run_in_graph,
  compare,
  num_epochs,
  given_steps,
  num_steps,
):
  hparams = fed_avg_ft.HParams(
    batch_size=4,
    learning_rate=RATE,
    fine_tuning_epochs=num_epochs,
    fine_tuning_steps=given_steps,
  )
  tuned = run_in_graph(
    lambda w, data: fed_avg_ft.fine_tune(model, hparams, num_steps, w, data),
    weights,
    client,
  )
  prepared = build(hparams).prepare_client(weights, (), client, 0)
  compare.assert_close(prepared, tuned, 1e-6)
