"""FedAvgFT: FedAvg whose clients predict with a fine-tuned model."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tff_shift import algorithms
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_avg_ft
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.simulation import rounds

pytestmark = pytest.mark.slow

NUM_DOMAINS = 2
RATE = 0.3
COMMON = {"batch_size": 4, "local_steps": 1, "learning_rate": RATE}


def fine_tuning_batches(data, num_steps):
  """Returns the batches of 4 of a client's fine-tuning."""
  seed = randomness.fold(data.seed, randomness.Purpose.PERSONALIZE)
  return [
    local_training.pooled_batches(data, visit + 1, 4, seed)(visit)
    for visit in range(num_steps)
  ]


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
    for batch in run_in_graph(
      lambda data: fine_tuning_batches(data, num_steps), client
    ):
      weights, _ = oracle.descend(
        weights,
        [
          lambda w, batch=batch: oracle.cross_entropy(
            oracle.predict(w, batch.x), batch.y
          )
        ],
        RATE,
      )
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
      fed_avg_ft.work(model, hparams).prepare_client,
      weights,
      (),
      client,
      np.int32(2),
    )
    moved = tf.nest.map_structure(np.zeros_like, weights)
    for batch, at_rate in zip(
      run_in_graph(lambda data: fine_tuning_batches(data, 5), client),
      rates,
      strict=True,
    ):
      stepped, _ = oracle.descend(
        weights,
        [
          lambda w, batch=batch: oracle.cross_entropy(
            oracle.predict(w, batch.x), batch.y
          )
        ],
        1.0,
      )
      moved = tf.nest.map_structure(
        lambda m, w, s: momentum * m + (w - s), moved, weights, stepped
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
    functions = fed_avg_ft.work(model, hparams)
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


class TestBesideFedAvg:
  @pytest.fixture(scope="class")
  def clients(self, make_client):
    return [make_client(i, [6 + i, 5]) for i in range(3)]

  @pytest.fixture(scope="class")
  def results(self, model, clients, context):
    """States after two rounds and what the evaluations say, by algorithm."""
    hparams = {
      fed_avg: fed_avg.HParams(**COMMON),
      fed_avg_ft: fed_avg_ft.HParams(fine_tuning_epochs=2, **COMMON),
    }
    results = {}
    for module, values in hparams.items():
      algorithm = algorithms.build(
        module, model, values, num_evaluation_domains=NUM_DOMAINS
      )
      run = rounds.Rounds(algorithm, clients, run_seed=3)
      run.step()
      run.step()
      state = run.server_state
      results[module] = types.SimpleNamespace(
        state=state,
        at_clients=algorithm.evaluate_clients(
          state, run.client_states, clients, clients
        ),
        at_server=algorithm.evaluate_server(state, clients, clients[0]),
      )
    return results

  def test_training_is_that_of_fed_avg(self, results, compare):
    assert compare.equal_bits(results[fed_avg_ft].state, results[fed_avg].state)

  def test_without_epochs_it_is_fed_avg(
    self, model, clients, run_in_graph, compare
  ):
    # In a plain graph: that of TFF takes longer.
    def everything(functions):
      prepare = functions.prepare_client or (lambda *_: ())
      return lambda weights, data, examples: (
        functions.train_client(weights, (), data, tf.constant(0)),
        functions.predict_as_client(
          weights, prepare(weights, (), data, tf.constant(0)), data, examples
        ),
        functions.predict_as_server(weights, (), examples),
      )

    weights = run_in_graph(model.initial_weights, clients[0].seed)
    tuned, plain = (
      run_in_graph(everything(functions), weights, *clients[:2])
      for functions in (
        fed_avg_ft.work(
          model, fed_avg_ft.HParams(fine_tuning_epochs=0, **COMMON)
        ),
        fed_avg.work(model, fed_avg.HParams(**COMMON)),
      )
    )
    assert compare.equal_bits(tuned[0], plain[0])
    compare.assert_close(tuned[1:], plain[1:], 1e-6)

  def test_clients_predict_their_own_examples_better(self, results):
    before = results[fed_avg].at_clients["loss"]
    assert np.all(results[fed_avg_ft].at_clients["loss"] < before)

  def test_server_predicts_as_before(self, results, compare):
    assert compare.equal_bits(
      results[fed_avg_ft].at_server, results[fed_avg].at_server
    )

  def test_clients_that_fine_tune_differ(
    self, model, clients, run_in_graph, run_for_each
  ):
    hparams = fed_avg_ft.HParams(learning_rate=RATE)
    weights = run_in_graph(model.initial_weights, clients[0].seed)
    tuned = run_for_each(
      lambda w, data: fed_avg_ft.fine_tune(model, hparams, 1, w, data),
      [(weights, client) for client in clients[:2]],
    )
    for one, other in zip(*map(tf.nest.flatten, tuned), strict=True):
      assert np.any(one != other)
