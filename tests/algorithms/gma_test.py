"""GMA: small steps where clients disagree."""

import dataclasses
import fractions
import functools

import numpy as np
import pytest
import tensorflow as tf

from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import gma
from tff_shift.learning import randomness
from tff_shift.testing import running

pytestmark = pytest.mark.slow

# Once for each of its hyper-parameters: then graphs of it are found again.
work = functools.cache(gma.build)

HPARAMS = gma.HParams(batch_size=4, local_steps=2, learning_rate=0.3)


def new_weights(model, run_in_graph, changes, threshold, weights=None):
  """What becomes of zeros when clients change them so."""
  changes = np.float32(changes)
  if weights is None:
    weights = np.ones(len(changes), np.float32)
  hparams = dataclasses.replace(HPARAMS, agreement_threshold=threshold)
  votes = gma.Votes(
    np.float32(weights @ np.sign(changes)), np.float32(sum(weights))
  )
  return run_in_graph(
    running.with_info(work(model, hparams).update_server),
    np.zeros_like(changes[0]),
    np.average(changes, axis=0, weights=weights).astype(np.float32),
    votes,
    np.int32(0),
  )


class TestMask:
  def test_agreement_shortens_steps(self, model, run_in_graph):
    changes = [
      [1, 1, 1, 0, 3],
      [1, -3, 1, 0, 3],
      [1, 1, -1, 0, 3],
      [1, -1, 1] + [0] * 2,
    ]
    # Means 1, -1/2, 1/2, 0, 9/4; agreements 1, 0, 1/2, 0, 3/4.
    for threshold, expected in (
      (0.4, [1, 0, 1 / 2, 0, 9 / 4]),
      (0.6, [1, 0, 1 / 4, 0, 9 / 4]),
      (1.0, [1, 0, 1 / 4, 0, 27 / 16]),
      (0.0, [1, -1 / 2, 1 / 2, 0, 9 / 4]),
    ):
      found = new_weights(model, run_in_graph, changes, threshold)
      np.testing.assert_allclose(found, expected, rtol=1e-6)

  def test_weighted_votes_weigh_as_much_as_changes(self, model, run_in_graph):
    # Of weights 1 and 3 the heavier one decides: agreement 1/2, mean 5/4.
    changes, weights = [[-1.0], [2.0]], np.float32([1, 3])
    for threshold, expected in ((0.5, 5 / 4), (0.6, 5 / 8)):
      found = new_weights(model, run_in_graph, changes, threshold, weights)
      np.testing.assert_allclose(found, [expected], rtol=1e-6)

  def test_agreement_at_the_threshold_reaches_it(self, run_in_graph):
    # In any number of clients, thirds and tenths included.
    shares = sorted(
      {
        fractions.Fraction(votes, count)
        for count in range(1, 41)
        for votes in range(count + 1)
      }
    )
    numerators, denominators = np.float32(
      [(each.numerator, each.denominator) for each in shares]
    ).T
    for times in (1, 7):
      found = run_in_graph(
        gma.mask,
        times * numerators,
        times * denominators,
        np.float32([float(each) for each in shares]),
      )
      np.testing.assert_array_equal(found, 1)


class TestClient:
  @pytest.mark.parametrize(
    ("client_weighting", "vote_weighting", "weight"),
    [
      ("uniform", "uniform", 1),
      ("num_examples", "uniform", 1),
      ("uniform", "client_weighting", 1),
      ("num_examples", "client_weighting", 11),
    ],
  )
  def test_sends_its_change_and_the_signs_of_it(
    self,
    model,
    make_client,
    run_in_graph,
    compare,
    client_weighting,
    vote_weighting,
    weight,
  ):
    client = make_client(0, [6, 5])
    # What no example has moves no weight.
    client.x[:, 2] = 0
    common = {"client_weighting": client_weighting, "learning_rate": 0.3}
    weights = run_in_graph(model.initial_weights, client.seed)
    found, plain = (
      run_in_graph(
        lambda w, data, functions=functions: functions.train_client(
          w, (), data, tf.constant(3)
        ),
        weights,
        client,
      )
      for functions in (
        work(model, gma.HParams(vote_weighting=vote_weighting, **common)),
        fed_avg.build(model, fed_avg.HParams(**common)),
      )
    )
    assert compare.equal_bits(
      (found.update, found.loss), (plain.update, plain.loss)
    )
    assert found.plaintext_sum.weight == weight
    signs = tf.nest.map_structure(
      lambda change: np.float32(weight) * np.sign(change), plain.update
    )
    assert compare.equal_bits(found.plaintext_sum.signs, signs)
    assert not signs.backbone[0][2].any()
    assert signs.backbone[0].any()


class TestRounds:
  @pytest.mark.parametrize(
    ("options", "step"),
    [({}, 0.2), ({"vote_weighting": "client_weighting"}, 0.6)],
  )
  def test_votes_of_clients_of_sizes_8_1_1(
    self, model, make_client, run_in_graph, monkeypatch, options, step
  ):
    # All weights of the first client move by 1, those of the others by -1.
    hparams = gma.HParams(
      agreement_threshold=0.4, client_weighting="num_examples", **options
    )
    weights = run_in_graph(model.initial_weights, randomness.server_seed(0))
    direct = gma.fed_avg.train_client
    monkeypatch.setattr(
      gma.fed_avg,
      "train_client",
      lambda *arguments: direct(*arguments)._replace(
        update=tf.nest.map_structure(
          lambda w: tf.ones_like(w)
          * tf.where(len_of(arguments[3]) > 1, 1.0, -1.0),
          weights,
        )
      ),
    )
    len_of = lambda data: tf.shape(data.y)[0]  # noqa: E731
    functions = work(model, hparams)
    votes = [
      run_in_graph(
        lambda w, data: functions.train_client(w, (), data, tf.constant(0)),
        weights,
        make_client(i, [size]),
      ).plaintext_sum
      for i, size in enumerate((8, 1, 1))
    ]
    mean = tf.nest.map_structure(lambda w: np.full_like(w, 0.6), weights)
    after = run_in_graph(
      running.with_info(functions.update_server),
      weights,
      mean,
      tf.nest.map_structure(lambda *each: np.float32(sum(each)), *votes),
      np.int32(0),
    )
    for new, old in zip(*map(tf.nest.flatten, (after, weights)), strict=True):
      np.testing.assert_allclose(new - old, step, atol=1e-6)

  def test_without_a_threshold_it_is_fed_avg_bit_for_bit(
    self, model, run_in_graph, compare
  ):
    generator = np.random.default_rng(0)
    weights = run_in_graph(model.initial_weights, randomness.server_seed(0))
    mean, signs = (
      tf.nest.map_structure(
        lambda w: generator.normal(size=w.shape).astype(np.float32), weights
      )
      for _ in range(2)
    )
    votes = gma.Votes(signs, np.float32(7))
    found, masked = (
      run_in_graph(
        running.with_info(
          work(
            model, dataclasses.replace(HPARAMS, agreement_threshold=threshold)
          ).update_server
        ),
        weights,
        mean,
        votes,
        np.int32(0),
      )
      for threshold in (0.0, 1.0)
    )
    plain = tf.nest.map_structure(np.add, weights, mean)
    assert compare.equal_bits(found, plain)
    assert not compare.equal_bits(masked, plain)
