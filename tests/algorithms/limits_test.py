"""Limits: with these hyper-parameters an algorithm is another, bit for bit."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.fixtures import trees
from tff_shift import algorithms
from tff_shift.algorithms import apfl
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

pytestmark = pytest.mark.slow

COMMON = {"batch_size": 4, "local_steps": 2, "learning_rate": 0.3}
DECAY = {"momentum": 0.5, "weight_decay": 0.01}
# Client states that are not empty, from the server's and a personal model.
STATES = {
  "apfl": lambda weights, own: apfl.ClientState(own, np.float32(0.4)),
  "ditto": lambda weights, own: own,
  "fed_dyn": lambda weights, own: trees.zeros(weights),
  "local": lambda weights, own: own,
  "moon": lambda weights, own: own.backbone,
}


@pytest.mark.parametrize(
  "optimizer", [{"optimizer": "sgd", **DECAY}, {"optimizer": "adam"}], ids=str
)
@pytest.mark.parametrize(
  "name, options, other, other_options",
  [
    ("apfl", {}, "fed_avg", {}),
    ("ditto", {}, "fed_avg", {}),
    # In the first round of a client.
    ("fed_dyn", {"alpha": 0.7}, "fed_prox", {"mu": 0.7}),
    ("fed_avg_ft", {"fine_tuning_epochs": 2}, "fed_avg", {}),
    # The votes come on top.
    ("gma", {}, "fed_avg", {}),
    ("fed_prox", {"mu": 0.0}, "fed_avg", {}),
    ("fed_prox_ft", {"mu": 0.7}, "fed_prox", {"mu": 0.7}),
    ("fed_sam_ft", {"rho": 0.0}, "fed_avg_ft", {}),
    ("moon", {"mu": 0.0}, "fed_avg", {}),
  ],
)
def test_client_sends_what_it_sends_in_another(
  build,
  client,
  weights,
  personal,
  compare,
  optimizer,
  name,
  options,
  other,
  other_options,
):
  result, expected = (
    build(
      algorithms.hparams(algorithm, **COMMON, **optimizer, **values)
    ).train_client(
      weights,
      STATES.get(algorithm, lambda *_: ())(weights, personal),
      client,
      2,
    )
    for algorithm, values in ((name, options), (other, other_options))
  )
  assert compare.equal_bits(
    (result.update, result.loss), (expected.update, expected.loss)
  )


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
  "name, options, shared",
  [
    ("apfl", {"adapt_mixture": False}, None),
    ("fed_proto", {"prototype_weight": 0.0}, np.ones((3, 8), np.float32)),
    # There are no prototypes.
    ("fed_proto", {"prototype_weight": 0.7}, np.zeros((3, 8), np.float32)),
  ],
)
def test_personal_model_is_that_of_local_training(
  build,
  model,
  client,
  weights,
  personal,
  run_in_graph,
  compare,
  optimizer,
  name,
  options,
  shared,
):
  hparams = algorithms.hparams(name, optimizer=optimizer, **COMMON, **options)
  result = (
    build(hparams)
    .train_client(
      weights if shared is None else shared,
      # All of the mixture is its own.
      apfl.ClientState(personal, np.float32(1)) if name == "apfl" else personal,
      client,
      2,
    )
    .client_state
  )

  def train(start, data):
    # Two iterations of a step for each of the two domains.
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, 2)
    return local_training.train_on_pool(
      model.predict, start, data, 4, seed, hparams
    ).weights

  assert compare.equal_bits(
    getattr(result, "personal", result), run_in_graph(train, personal, client)
  )


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_ditto_without_the_pull_is_local_training(
  build, client, weights, personal, compare, optimizer
):
  result, alone = (
    build(
      algorithms.hparams(name, optimizer=optimizer, **COMMON, **options)
    ).train_client(weights, personal, client, 2)
    for name, options in (("ditto", {"ditto_lambda": 0.0}), ("local", {}))
  )
  assert compare.equal_bits(result.client_state, alone.client_state)


@pytest.mark.parametrize("name", ["fed_rod", "fed_the"])
def test_equally_frequent_classes_are_fed_avg(
  build, make_client, compare, name
):
  client = make_client(0, [6, 6], y=[0, 1, 2] * 4)
  functions = build(algorithms.hparams(name, **COMMON))
  shared = functions.initial_weights(client.seed)
  state = functions.initial_client_state(client.seed, shared)
  result = functions.train_client(shared, state, client, 2).update
  expected = build(algorithms.hparams("fed_avg", **COMMON)).train_client(
    getattr(shared, "model", shared), (), client, 2
  )
  assert compare.equal_bits(getattr(result, "model", result), expected.update)


@pytest.mark.parametrize(
  "name, options",
  [
    ("fed_avg_ft", {"fine_tuning_epochs": 0}),
    ("fed_babu", {"fine_tuning_epochs": 0}),
    ("per_fed_avg", {"inner_rate": 0.0}),
    ("per_fed_avg", {"adaptation_steps": 0}),
    # Who never took part.
    ("ditto", {}),
    ("fed_ala", {}),
    ("fed_ala", {"variant": "program"}),
  ],
)
def test_client_has_the_server_model(
  build, client, weights, compare, name, options
):
  functions = build(algorithms.hparams(name, **COMMON, **options))
  state = functions.initial_client_state(client.seed, weights)
  if functions.prepare_client is not None:
    state = functions.prepare_client(weights, state, client, 2)
  assert compare.equal_bits(state, weights)


@pytest.mark.parametrize(
  "name, options",
  [
    ("ditto", {}),
    ("fed_3da", {}),
    ("fed_avg_ft", {}),
    ("fed_proto", {"proto_prediction": "classifier"}),
    # Before the first prototypes.
    ("fed_proto", {}),
    ("p_fed_me", {}),
  ],
)
def test_client_predicts_with_its_own_model(
  build, client, personal, make_client, oracle, name, options
):
  functions, other = (
    build(algorithms.hparams(name, **options)),
    make_client(1, [9]),
  )
  shared = functions.initial_weights(client.seed)
  assert_allclose(
    functions.predict_as_client(shared, personal, client, other),
    oracle.predict(personal, other.x),
    atol=1e-5,
  )
  if isinstance(shared, split_model.SplitWeights):
    assert_allclose(
      functions.predict_as_server(shared, (), other),
      oracle.predict(shared, other.x),
      atol=1e-5,
    )


@pytest.mark.parametrize(
  "name, options",
  [
    ("fed_babu", {}),
    ("fed_prox_ft", {"mu": 0.7}),
    ("fed_sam_ft", {"rho": 0.4}),
  ],
)
def test_fine_tuning_is_that_of_fed_avg_ft(
  build, client, weights, compare, name, options
):
  common = {"fine_tuning_steps": 3, "cosine_rounds": 6, **COMMON, **DECAY}
  result, expected = (
    build(algorithms.hparams(algorithm, **common, **values)).prepare_client(
      weights, (), client, 2
    )
    for algorithm, values in ((name, options), ("fed_avg_ft", {}))
  )
  assert compare.equal_bits(result, expected)
  assert not compare.equal_bits(result, weights)


ONE_MODEL = {"num_models": 1}
SPLITS = {"rounds_before_split": 0, "longest_norm": 0.0, "gamma": 0.0}
FLUX = {"clustering_round": 2, "max_clusters": 4, "descriptor_size": 3}


def one_model(weights, like):
  """The model of a server that has one, or the first of several."""
  for field in ("model", "mean", "models"):
    weights = getattr(weights, field, weights)
  return trees.map(
    lambda w, plain: w if w.ndim == plain.ndim else w[0], weights, like
  )


@pytest.mark.parametrize("weighting", ["uniform", "num_examples"])
@pytest.mark.parametrize(
  "name, options",
  [
    ("fe_sem", ONE_MODEL),
    # Divisions by four steps are exact.
    ("fed_nova", {}),
    ("gma", {"agreement_threshold": 0.0}),
    ("ifca", ONE_MODEL),
    ("per_fed_avg", {"inner_rate": 0.0, "hessian": "exact"}),
    ("per_fed_avg", {"inner_rate": 0.0, "hessian": "hessian_free"}),
    ("per_fed_avg", {"inner_rate": 0.0, "hessian": "first_order"}),
    *(
      pytest.param(name, options, marks=pytest.mark.long)
      for name, options in [
        ("fed_em", ONE_MODEL),
        ("fed_rc", ONE_MODEL),
        ("clustered_fl", {**SPLITS, **ONE_MODEL, "mean_norm": 1e6}),
        ("clustered_fl", {**SPLITS, "num_models": 3, "mean_norm": 0.0}),
        ("fed_iir", {"alignment": 0.0, "head": "last_layer"}),
        ("fed_iir", {"alignment": 0.0, "head": "classifier"}),
        # Everyone is in one cluster, there is none yet, or no values than one.
        ("flux", {**FLUX, "eps": "fixed", "cluster_distance": 1e30}),
        ("flux", {**FLUX, "clustering_round": 9}),
        ("flux", {**FLUX, "max_clusters": 1}),
      ]
    ),
  ],
)
def test_rounds_are_those_of_fed_avg(
  start, make_client, compare, weighting, name, options
):
  # Sizes whose fractions are no float32 numbers.
  data = [make_client(i, [5 + 2 * i, 4]) for i in range(3)]
  run, plain = (
    start(
      algorithms.hparams(
        algorithm, client_weighting=weighting, **COMMON, **values
      ),
      data,
    )
    for algorithm, values in ((name, options), ("fed_avg", {}))
  )
  for _ in range(4):
    assert run.step()["loss"] == plain.step()["loss"]
  expected = plain.server_state.weights
  assert compare.equal_bits(
    one_model(run.server_state.weights, expected), expected
  )


NO_RATE = {"learning_rate": 0.0}
NO_STEPS = {"adaptation_steps": 0}
FIXED = {"normalize_by": "source"}
NO_IMAGES = {"confidence_threshold": 0.0, "num_augmentations": 0}


@pytest.mark.parametrize(
  "name, options, model_name, num_rounds",
  [
    ("ada_bn", {"statistics_of": "source"}, "normalized_model", 0),
    ("ada_bn", {"statistics_of": "stream"}, "normalized_model", 0),
    ("atp", {}, "model", 1),
    ("atp", {}, "normalized_model", 1),
    ("cotta", {"teacher_memory": 1.0, **NO_IMAGES}, "model", 1),
    ("fed_ctta", NO_RATE, "model", 1),
    ("fed_ctta", NO_STEPS, "model", 1),
    ("lame", {"num_neighbors": 0}, "model", 0),
    ("lame", {"max_steps": 0}, "model", 0),
    ("prior_correction", {"prior": "uniform"}, "model", 0),
    ("prior_correction", {"prior": "labelled"}, "model", 0),
    ("shot", NO_RATE, "model", 1),
    ("shot", NO_RATE | FIXED, "normalized_model", 1),
    ("tent", NO_RATE | FIXED, "normalized_model", 1),
    ("tent", NO_STEPS | FIXED, "normalized_model", 1),
  ],
)
def test_client_predicts_as_the_source(
  build,
  request,
  make_adapting_client,
  make_client,
  name,
  options,
  model_name,
  num_rounds,
):
  model = request.getfixturevalue(model_name)
  # More examples than models take at a time.
  client, examples = make_adapting_client(0, 9, 6), make_client(5, [300])
  functions, source = (
    build(algorithms.hparams(algorithm, **values), model=model)
    for algorithm, values in ((name, options), ("source", {}))
  )
  shared = functions.initial_weights(client.seed)
  state = functions.initial_client_state(client.seed, shared)
  for round_num in range(num_rounds):
    state = functions.train_client(
      shared, state, client, round_num
    ).client_state
  np.testing.assert_array_equal(
    functions.predict_as_client(shared, state, client, examples),
    source.predict_as_client(
      source.initial_weights(client.seed), (), client, examples
    ),
  )


@pytest.mark.parametrize("name", ["fed_evolve", "fed_evp"])
def test_one_domain_has_nothing_to_learn_from(build, make_client, name):
  client = make_client(0, [6])
  functions = build(algorithms.hparams(name, local_steps=3))
  weights = functions.initial_weights(client.seed)
  update = functions.train_client(weights, (), client, 0).update
  assert trees.largest(update) == 0
