"""FedAvgFT: FedAvg whose clients predict with a fine-tuned model."""

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_avg_ft
from tff_shift.learning import randomness

pytestmark = pytest.mark.slow

NUM_DOMAINS = 2
RATE = 0.3
COMMON = {"batch_size": 4, "local_steps": 1, "learning_rate": RATE}


class TestFineTuning:
  @pytest.mark.parametrize("num_steps", [0, 1, 4])
  def test_agrees_with_the_oracle(
    self, model, make_client, oracle, run_in_graph, compare, num_steps
  ):
    client = make_client(0, [6, 4])
    hparams = fed_avg_ft.HParams(batch_size=4, learning_rate=RATE)
    weights = run_in_graph(model.initial_weights, client.seed)
    tuned = run_in_graph(
      lambda w, data: fed_avg_ft.fine_tune(model, hparams, num_steps, w, data),
      weights,
      client,
    )

    # 10 examples are three batches of 4, the last of which begins anew.
    batches = oracle.batches(client, num_steps, randomness.Purpose.PERSONALIZE)
    if num_steps:
      weights, _ = oracle.descend(weights, oracle.losses(batches), RATE)
    compare.assert_close(tuned, weights, 1e-5)

  @pytest.mark.parametrize(
    ("rate", "cosine_rounds", "rates"),
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
  def test_rate_goes_on_falling(
    self,
    model,
    make_client,
    oracle,
    run_in_graph,
    compare,
    rate,
    cosine_rounds,
    rates,
    momentum,
  ):
    client = make_client(0, [6, 4])
    hparams = fed_avg_ft.HParams(
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
    weights = run_in_graph(model.initial_weights, client.seed)
    prepared = run_in_graph(
      fed_avg_ft.build(model, hparams).prepare_client,
      weights,
      (),
      client,
      np.int32(2),
    )
    moved = tf.nest.map_structure(np.zeros_like, weights)
    batches = oracle.batches(client, 5, randomness.Purpose.PERSONALIZE)
    for loss, at_rate in zip(oracle.losses(batches), rates, strict=True):
      moved = tf.nest.map_structure(
        lambda m, slope: momentum * m + slope,
        moved,
        oracle.gradient(loss, weights),
      )
      weights = tf.nest.map_structure(
        lambda w, m, by=at_rate: w - by * m, weights, moved
      )
    compare.assert_close(prepared, weights, 1e-5)

  @pytest.mark.parametrize(
    ("num_epochs", "given_steps", "num_steps"),
    # 10 examples are three batches of 4.
    [(2, 0, 6), (2, 4, 4), (0, 1, 1)],
  )
  def test_steps_replace_epochs(
    self,
    model,
    make_client,
    oracle,
    run_in_graph,
    num_epochs,
    given_steps,
    num_steps,
  ):
    client, examples = make_client(0, [6, 4]), make_client(1, [7])
    hparams = fed_avg_ft.HParams(
      batch_size=4,
      learning_rate=RATE,
      fine_tuning_epochs=num_epochs,
      fine_tuning_steps=given_steps,
    )
    functions = fed_avg_ft.build(model, hparams)
    weights = run_in_graph(model.initial_weights, client.seed)
    prepared = run_in_graph(
      functions.prepare_client, weights, (), client, np.int32(0)
    )
    logits = run_in_graph(
      functions.predict_as_client, weights, prepared, client, examples
    )
    tuned = run_in_graph(
      lambda w, data: fed_avg_ft.fine_tune(model, hparams, num_steps, w, data),
      weights,
      client,
    )
    np.testing.assert_allclose(
      logits, oracle.predict(tuned, examples.x), atol=1e-5
    )


@pytest.mark.parametrize("num_epochs", [0, 2])
def test_clients_alone_predict_with_what_is_fine_tuned(
  model, make_client, oracle, run_in_graph, compare, num_epochs
):
  clients = [make_client(i, [6 + i, 5]) for i in range(2)]
  weights = run_in_graph(model.initial_weights, clients[0].seed)

  def everything(functions):
    prepare = functions.prepare_client or (lambda *_: ())
    return run_in_graph(
      lambda weights, data, examples: (
        functions.train_client(weights, (), data, tf.constant(0)),
        functions.predict_as_server(weights, (), examples),
        functions.predict_as_client(
          weights, prepare(weights, (), data, tf.constant(0)), data, examples
        ),
      ),
      weights,
      clients[0],
      clients[0],
    )

  (*found, tuned), (*expected, plain) = (
    everything(module.build(model, module.HParams(**COMMON, **values)))
    for module, values in (
      (fed_avg_ft, {"fine_tuning_epochs": num_epochs}),
      (fed_avg, {}),
    )
  )
  assert compare.equal_bits(found, expected)
  if num_epochs:
    # They predict their own examples better.
    losses = [oracle.cross_entropy(x, clients[0].y) for x in (tuned, plain)]
    assert losses[0] < losses[1]
  else:
    compare.assert_close(tuned, plain, 1e-6)


def test_clients_that_fine_tune_differ(
  model, make_client, run_in_graph, run_for_each
):
  clients = [make_client(i, [6 + i, 5]) for i in range(2)]
  hparams = fed_avg_ft.HParams(learning_rate=RATE)
  weights = run_in_graph(model.initial_weights, clients[0].seed)
  tuned = run_for_each(
    lambda w, data: fed_avg_ft.fine_tune(model, hparams, 1, w, data),
    [(weights, client) for client in clients],
  )
  for one, other in zip(*map(tf.nest.flatten, tuned), strict=True):
    assert np.any(one != other)
