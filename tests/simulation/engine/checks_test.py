"""What drivers are told wrongly is refused by name, before any work."""

import dataclasses
import math
import types

import numpy as np
import pytest

from tff_shift import algorithms
from tff_shift.algorithms import fed_avg
from tff_shift.algorithms import fed_drm
from tff_shift.algorithms import fix_lr
from tff_shift.algorithms import fth
from tff_shift.algorithms import source
from tff_shift.command_line.tuning import selection
from tff_shift.data import examples as examples_lib
from tff_shift.data import from_python
from tff_shift.data.shifts import (
  dynamic_personalization as dynamic_personalization_data,
)
from tff_shift.learning import randomness
from tff_shift.models import guided_model
from tff_shift.models.networks import mlp
from tff_shift.scenarios.dynamic_personalization import (
  simulation as dynamic_personalization,
)
from tff_shift.scenarios.evolving import simulation as evolving
from tff_shift.scenarios.guidance import queries
from tff_shift.scenarios.guidance import simulation as guidance
from tff_shift.scenarios.online_adaptation import (
  simulation as online_adaptation,
)
from tff_shift.simulation import pretraining
from tff_shift.simulation import pretraining_hparams
from tff_shift.simulation.engine import checkpoints
from tff_shift.simulation.engine import client_data
from tff_shift.simulation.engine import rounds

pytestmark = pytest.mark.usefixtures("context")

NUM_CLIENTS = 2
MODEL = mlp.build((3,), num_classes=2, width=4, head_width=3)
GENERATOR = np.random.default_rng(0)


def pair(size=8):
  return GENERATOR.normal(size=(size, 3)), np.arange(size) % 2


EVOLVING = from_python.from_arrays(
  "evolving",
  [[pair() for _ in range(3)] for _ in range(NUM_CLIENTS)],
  num_classes=2,
)
GUIDANCE = from_python.from_arrays("guidance", [pair(), pair()], num_classes=2)
ONLINE = from_python.from_arrays(
  "online_adaptation",
  [pair(), pair()],
  [[pair(4), pair(4)] for _ in range(NUM_CLIENTS)],
)
POOL = examples_lib.Examples(*pair(40))


def make_periods(num_clients=NUM_CLIENTS):
  return dynamic_personalization_data.Periods(
    POOL._replace(x=POOL.x.astype(np.float32)),
    2,
    "iid",
    num_clients=num_clients,
    period_size=8,
    seed=0,
  )


PERIODS = make_periods()
STREAM = dynamic_personalization.Stream(
  PERIODS, np.zeros([2, NUM_CLIENTS]), np.zeros([2, NUM_CLIENTS], bool)
)


@pytest.fixture(scope="module")
def idle():
  """Returns `idle(module, ...)`: an algorithm that must not be set to work."""
  built = {}

  def work(*arguments):
    raise AssertionError("there was work")

  def make(module, model=MODEL, **options):
    key = module.__name__, model.name, tuple(options.items())
    if key not in built:
      algorithm = algorithms.build(module, model, **options)
      built[key] = dataclasses.replace(
        algorithm,
        initialize=work,
        initialize_client=work,
        phases=tuple(with_type(work, each) for each in algorithm.phases),
      )
    return built[key]

  return make


def with_type(function, computation):
  """A function that has the type of a computation."""

  class Typed:
    type_signature = computation.type_signature

    def __call__(self, *given):
      return function(*given)

  return Typed()


def run_evolving(idle, **changes):
  given = {
    "algorithm": idle(fed_avg, num_evaluation_domains=3),
    "clients": EVOLVING,
    "num_rounds": 2,
    "run_seed": 0,
  }
  return evolving.run(**given | changes)


def run_guidance(idle, **changes):
  given = {
    "algorithm": idle(fed_avg, num_queries=8),
    "train": GUIDANCE.train,
    "test": GUIDANCE.test,
    "num_rounds": 2,
    "run_seed": 0,
  }
  return guidance.run(**given | changes)


def run_online(idle, **changes):
  given = {
    "algorithm": idle(fth),
    "client_streams": ONLINE.streams,
    "deployment": online_adaptation.Deployment(
      ONLINE.initial, np.eye(2, dtype=np.float32)
    ),
    "run_seed": 0,
  }
  return online_adaptation.run(**given | changes)


def run_dynamic(idle, **changes):
  given = {
    "algorithm": idle(fed_avg, num_evaluation_domains=NUM_CLIENTS),
    "training": PERIODS,
    "validation": PERIODS,
    "met": {"iid": STREAM},
    "represent": None,
    "num_rounds": 2,
    "run_seed": 0,
    "threshold": 1.0,
  }
  return dynamic_personalization.run(**given | changes)


COMMON = {
  "num_rounds": (0, 1.0),
  "run_seed": (-1, 2**32),
  "participation": (0, 1.1),
  "callbacks": (None, [3], print),
  "checkpoint": ("folder",),
  "algorithm": ("fed_avg", None),
}
WRONG = {
  run_evolving: COMMON
  | {
    "evaluate_every": (0,),
    "evaluation_clients": (-1, NUM_CLIENTS + 1),
    "clients": ([], None, {0: EVOLVING[0]}),
  },
  run_guidance: COMMON
  | {
    "evaluate_every": (0,),
    "num_final_rounds": (0,),
    "train": ((), GUIDANCE.train[:1], None),
    "test": ((), [*GUIDANCE.test] * 2),
  },
  run_online: {
    name: values for name, values in COMMON.items() if name != "num_rounds"
  }
  | {
    "rounds_per_step": (0,),
    "client_streams": (None, []),
    "deployment": (
      None,
      online_adaptation.Deployment(
        ONLINE.initial[:1], np.eye(2, dtype=np.float32)
      ),
    ),
    "prescribed_rates": (np.ones([3, 2]), np.full([2, 2], np.nan), 0.1),
  },
  run_dynamic: COMMON
  | {
    "threshold": (math.nan, "1", None),
    "apply_update": ("later", None),
    "training": (None,),
    "validation": (None, make_periods(3)),
  },
}


@pytest.mark.parametrize(
  "run, name, value",
  [
    pytest.param(run, name, value, id=f"{run.__name__}-{name}-{number}")
    for run, wrong in WRONG.items()
    for name, values in wrong.items()
    for number, value in enumerate(values)
  ],
)
def test_wrong_argument_is_named_before_any_work(
  idle, run, name, value, refusal
):
  told = refusal(run, idle, **{name: value})
  (line,) = told.splitlines()
  assert name in line


@pytest.mark.parametrize(
  "run, changes, message",
  [
    (run_evolving, {"clients": [*EVOLVING[:1], 7]}, "client 1 must be a"),
    (run_dynamic, {"met": {"0.8": PERIODS}}, "0.8 must be a Stream"),
    (
      run_dynamic,
      {"met": {"0.8": STREAM._replace(drawn=make_periods(3))}},
      "stream 0.8 must have periods of 2 clients",
    ),
  ],
)
def test_wrong_parts_are_named(idle, run, changes, message):
  with pytest.raises(ValueError, match=message):
    run(idle, **changes)


@pytest.mark.parametrize(
  "run, module, options, message",
  [
    (run_evolving, fth, {}, "fth is not allowed.*AdaptationData.*ClientData"),
    (run_evolving, fed_avg, {}, "domain_sizes"),
    (run_online, fed_avg, {}, "fed_avg is not allowed.*ClientData"),
    (run_dynamic, fth, {}, "fth is not allowed"),
    (run_guidance, fed_avg, {}, "fed_avg was built without num_queries"),
    (run_guidance, source, {}, "source is not allowed"),
    (run_dynamic, fed_avg, {}, "num_evaluation_domains of fed_avg must be 2"),
  ],
)
def test_algorithm_of_another_scenario_is_named(
  idle, run, module, options, message
):
  with pytest.raises(ValueError, match=message):
    run(idle, algorithm=idle(module, **options))


@pytest.mark.slow
def test_rates_are_not_prescribed_to_who_has_none(idle, context):
  del idle, context
  algorithm = algorithms.build(fth, MODEL)
  with pytest.raises(ValueError, match=r"prescribed_rates.*fth has no"):
    run_online(
      lambda module: None, algorithm=algorithm, prescribed_rates=np.ones([2, 2])
    )


class TestRounds:
  @pytest.mark.slow
  def test_clients_beyond_those_that_are_told_apart_are_refused(self, idle):
    model = guided_model.with_guide(MODEL, num_clients=2, width=3)
    algorithm = idle(fed_drm, model)
    assert algorithm.max_clients == 2
    data = client_data.training_data([GUIDANCE.train[0]] * 3, 0)
    with pytest.raises(ValueError, match=r"at most 2 clients.*fed_drm.*got 3"):
      rounds.Rounds(algorithm, data, run_seed=0)

  @pytest.mark.parametrize(
    "change, name",
    [
      ({"data": []}, "data"),
      ({"data": None}, "data"),
      ({"run_seed": -1}, "run_seed"),
      ({"on_loss": None}, "on_loss"),
      ({"algorithm": "fed_avg"}, "algorithm"),
    ],
  )
  def test_wrong_argument_is_named(self, idle, change, name):
    given = {"algorithm": idle(fed_avg), "data": [()], "run_seed": 0}
    with pytest.raises(ValueError, match=f"^{name}"):
      rounds.Rounds(**given | change)


PROBLEM = types.SimpleNamespace(num_classes=5)
HALVES = np.array([0.5, 0.5, 0, 0, 0])


def _choose(scores):
  trials = [selection.Trial("a", None, {})]
  return lambda: selection.choose(trials, scores)


def _pretrain(train=POOL, hparams=None, seed=0):
  hparams = hparams or pretraining_hparams.PretrainingHParams()
  return lambda: pretraining.pretrain(MODEL, train, POOL, hparams, seed=seed)


def _sample(*arguments):
  return lambda: rounds.sample_clients(*arguments)


def _build(*hparams, **options):
  return lambda: algorithms.build(fed_avg, MODEL, *hparams, **options)


_FOLDER = types.SimpleNamespace(__truediv__=None)


@pytest.mark.parametrize(
  "call, name",
  [
    (_sample(0, 1.0, 0, 0), "num_clients="),
    (_sample(2, "1", 0, 0), "participation="),
    (_sample(2, 1.0, -1, 0), "run_seed="),
    (_sample(2, 1.0, 0, -1), "round_num="),
    (_choose([math.nan]), "the score of a"),
    (lambda: checkpoints.Run(None, "", every=-1), "every"),
    (lambda: checkpoints.Run(_FOLDER, "", every=1.5), "every"),
    (
      lambda: dynamic_personalization.measure_stream(PERIODS, 0, None),
      "num_periods",
    ),
    (_pretrain(seed=-1), "seed"),
    (_pretrain(hparams=fed_avg.HParams()), "hparams"),
    (_pretrain(train=POOL.x), "train"),
    (_build(num_queries=0), "num_queries"),
    (_build(num_evaluation_domains=0), "num_evaluation_domains"),
    (_build({"batch_size": 4}), "hparams"),
    (_build(fix_lr.HParams()), "hparams"),
  ],
)
def test_other_functions_name_what_is_wrong(call, name, refusal):
  assert refusal(call).startswith(name)


class TestQueries:
  @pytest.fixture(scope="class")
  def federation(self, context):
    del context
    algorithm = algorithms.build(fed_avg, MODEL, num_queries=4)
    state = algorithm.initialize(randomness.server_seed(0))
    data = client_data.training_data(GUIDANCE.train, 0)
    given = algorithm, state, [()] * NUM_CLIENTS, data
    return queries.Federation(*given), given

  X = np.zeros([5, 3], np.float32)

  @pytest.mark.parametrize(
    "routes",
    [np.zeros(4, int), [], np.zeros([5, 1], int), 0, [0.0] * 5, [2**40] * 5],
  )
  def test_routes_that_are_not_one_for_each_query(
    self, federation, refusal, routes
  ):
    told = refusal(federation[0].answer, self.X, routes)
    assert told.startswith("routes, one for each query: ")

  @pytest.mark.parametrize(
    "x",
    [
      X[:, :2],
      np.zeros([5, 3], int),
      np.full([5, 3], np.nan, np.float32),
      np.ma.masked_less(X + np.eye(5, 3) - 0.5, 0),
      [],
      "queries",
    ],
  )
  def test_queries_that_the_model_does_not_take(self, federation, refusal, x):
    asked = federation[0]
    for told in (
      refusal(asked.answer, x, np.zeros(len(x), int)),
      refusal(asked.vote, x),
    ):
      assert told.startswith("queries: ")

  def test_wider_types_give_the_same_answers(self, federation):
    x = GENERATOR.normal(size=(5, 3)).astype(np.float32)
    routes = np.array([0, 1, 1, 0, 1], np.int32)
    expected = federation[0].answer(x, routes)
    found = federation[0].answer(x.astype(float).tolist(), routes.tolist())
    np.testing.assert_array_equal(found.classes, expected.classes)
    assert found.routes.dtype == np.int32
    np.testing.assert_array_equal(found.routes, routes)

  def test_states_and_data_are_of_the_same_clients(self, federation):
    algorithm, state, states, data = federation[1]
    for given, name in (
      ((states[:1], data), "client_states"),
      ((states, []), "data"),
    ):
      with pytest.raises(ValueError, match=f"^{name} must have"):
        queries.Federation(algorithm, state, *given)
