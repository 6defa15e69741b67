"""Metrics equal scikit-learn's on the same predictions."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
import tensorflow_federated as tff
from numpy.testing import assert_allclose
from numpy.testing import assert_array_equal
from sklearn import metrics as oracle

from tff_shift import algorithms
from tff_shift import models
from tff_shift.learning import evaluation
from tff_shift.learning import metric as metric_lib
from tff_shift.learning import metrics
from tff_shift.learning.aggregators import factories
from tff_shift.scenarios.dynamic_personalization import deployment

NUM_CLASSES = 4


def evaluation_of(names, num_classes=NUM_CLASSES, class_names=None):
  """A computation on (logits, y, domain sizes) of clients, and its metrics."""
  chosen = metrics.choose(names, num_classes, class_names)

  @tff.tensorflow.computation(
    tff.TensorType(np.float32, (None, num_classes)),
    tff.TensorType(np.int32, (None,)),
    tff.TensorType(np.int32, (2,)),
  )
  def sums(logits, y, domain_sizes):
    return evaluation.domain_metrics(logits, y, domain_sizes, chosen)

  @tff.federated_computation(
    tff.FederatedType(sums.type_signature.parameter, tff.CLIENTS)
  )
  def evaluate(clients):
    return evaluation.federated_metrics(
      tff.federated_map(sums, clients), chosen
    )

  return evaluate, chosen


@pytest.fixture(scope="module")
def evaluate(context):
  """All metrics of the package, and their means; in batches of 8 for AUROC."""
  every = metrics._own_names()
  means = [f"mean_{name}" for name in every if not metrics.get(name).is_table]
  with pytest.MonkeyPatch.context() as patches:
    patches.setattr(metric_lib, "_LARGEST_BATCH", 8 * NUM_CLASSES * 2 * 256)
    return evaluation_of([*every, *means])[0]


def calibration_error(y, p):
  """The bins of Guo et al., example by example."""
  confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
  place = np.ceil(confidence * 15)
  return sum(
    abs(np.sum((correct - confidence)[place == b])) for b in range(1, 16)
  ) / len(y)


# With scikit-learn's rules for what a client lacks: F1 of a class without a
# correct prediction is 0 (zero_division=0), and has no weight without an
# example (labels=); a class without an example has no recall
# (zero_division=nan), and no area under its curve; nothing is defined without
# examples (scikit-learn raises an error).
ORACLES = {
  "macro_f1": lambda y, p: oracle.f1_score(
    *(y, p.argmax(1)), labels=np.unique(y), average="macro", zero_division=0
  ),
  "balanced_accuracy": lambda y, p: oracle.balanced_accuracy_score(
    y, p.argmax(1)
  ),
  "recall_per_class": lambda y, p: oracle.recall_score(
    *(y, p.argmax(1)),
    labels=range(NUM_CLASSES),
    average=None,
    zero_division=np.nan,
  ),
  "auroc": lambda y, p: np.ma.masked_invalid(
    oracle.roc_auc_score(np.eye(NUM_CLASSES)[y], p, average=None)
  ).mean(),
  "brier": lambda y, p: oracle.brier_score_loss(
    y, p, labels=range(NUM_CLASSES), scale_by_half=False
  ),
  "ece": calibration_error,
  "confusion_matrix": lambda y, p: np.pad(
    oracle.confusion_matrix(y, p.argmax(1), labels=range(NUM_CLASSES)),
    [(0, 0), (0, 1)],
  ),
}


def expected(name, logits, y):
  """The metric from all predictions; NaN if it is not defined."""
  shape = {"recall_per_class": [NUM_CLASSES], "confusion_matrix": [4, 5]}
  if not len(y):
    value = 0.0 if metrics.get(name).is_table else np.nan
    return np.full(shape.get(name, []), value)
  p = scipy.special.softmax(np.float64(logits), axis=1)
  return np.ma.filled(ORACLES[name](y, p), np.nan)


classes_of = st.sets(st.integers(0, NUM_CLASSES - 1), min_size=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@hypothesis.settings(max_examples=40)
@hypothesis.given(
  st.integers(0, 2**32 - 1),
  st.sampled_from([0.1, 1.0, 8.0, 40.0]),
  # The classes of a client's labels and predictions, and its size.
  st.lists(
    st.tuples(classes_of, classes_of, st.integers(0, 40)),
    min_size=1,
    max_size=3,
  ),
)
# All have one class; one has no examples; one predicts a class that it lacks.
@hypothesis.example(0, 1.0, [({1}, {1}, 5), ({1}, {0}, 5)])
@hypothesis.example(1, 1.0, [({0, 2}, {1, 3}, 9), ({0}, {0}, 0)])
@hypothesis.example(2, 1.0, [({0}, {0}, 0)])
def test_sums_of_clients_give_the_metrics_of_all_predictions(
  evaluate, seed, spread, drawn
):
  rng = np.random.default_rng(seed)
  clients = []
  for classes, predicted, size in drawn:
    logits = spread * rng.normal(size=(size, NUM_CLASSES))
    logits[:, list(predicted)] += 4
    y = rng.choice(sorted(classes), size)
    # The first domain is empty.
    clients.append((np.float32(logits), np.int32(y), np.int32([0, size])))
  found = evaluate(clients)
  logits, y = (np.concatenate([each[i] for each in clients]) for i in (0, 1))
  for name in ORACLES:
    # Half of the pairs in a bin may be ranked wrongly.
    error = found["auroc_error"][1] if name == "auroc" else 0.0
    assert_allclose(
      found[name][1],
      expected(name, logits, y),
      rtol=2e-5,
      atol=2e-5 + np.nan_to_num(error),
    )
    if name in ("confusion_matrix", "auroc"):
      continue
    by_client = [expected(name, *each[:2]) for each in clients]
    mean = np.ma.masked_invalid(by_client).mean(axis=0)
    assert_allclose(
      found[f"mean_{name}"][1], np.ma.filled(mean, np.nan), 2e-5, 2e-5
    )
  tables = {name for name in metrics.names() if metrics.get(name).is_table}
  for name, value in found.items():
    if name not in {"num_examples", *tables}:
      assert np.isnan(value[0]).all(), f"{name} of no examples"


@pytest.mark.slow
class TestByHand:
  # Probabilities 1/2, 1/4, 1/4, with each class once as the most probable.
  LOGITS = np.log(np.float32([[2, 1, 1], [1, 2, 1], [1, 1, 2], [2, 1, 1]]))

  @pytest.fixture(scope="class")
  def measure(self, context):
    evaluate, chosen = evaluation_of(
      [
        *("balanced_accuracy", "recall_per_class"),
        *("confusion_matrix", "auroc", "auroc_error", "brier", "ece"),
      ],
      3,
      ["cat", "dog", "a, b"],
    )

    def measure(logits, y):
      means = evaluate([(logits, np.int32(y), np.int32([0, len(y)]))])
      return evaluation.report(
        means, lambda values: float(values[1]), chosen
      ), evaluation.tables(means, chosen, slice(1, 2))["confusion_matrix"]

    return measure

  def test_three_classes(self, measure):
    # Right, right, a dog taken for the third class, right. No third class.
    found, matrix = measure(self.LOGITS, [0, 1, 1, 0])
    assert_array_equal(matrix, [[2, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]])
    # Recalls of 1 and 1/2.
    assert found["balanced_accuracy"] == pytest.approx(75)
    assert (found["recall_cat"], found["recall_dog"]) == (1, 0.5)
    assert np.isnan(found["recall_a_b"])
    # Cats above all others; of the four pairs of dogs, two won and two tied.
    assert found["auroc"] == pytest.approx((1 + 3 / 4) / 2)
    assert found["auroc_error"] == pytest.approx((0 + 1 / 4) / 2)

  def test_prediction_that_is_not_finite_is_wrong_with_certainty(self, measure):
    logits = self.LOGITS.copy()
    logits[0] = np.nan
    found, matrix = measure(logits, [0, 1, 2, 0])
    assert_array_equal(matrix, [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]])
    assert found["recall_cat"] == 0.5
    assert found["brier"] == pytest.approx((2 + 3 * 3 / 8) / 4)
    # One of confidence 1 is wrong, three of 1/2 are right.
    assert found["ece"] == pytest.approx((1 + 3 / 2) / 4)
    # The first cat loses to all; it is above the dog and the third class.
    areas = np.array([2 / 4, 2 / 3, 2 / 3])
    assert found["auroc"] == pytest.approx(areas.mean())


def test_metrics_of_one_function_send_its_sums_once():
  chosen = metrics.choose(
    ["mean_macro_f1", "balanced_accuracy", "macro_f1"], NUM_CLASSES
  )
  sums = metric_lib.domain_sums(
    chosen, tf.zeros([0, NUM_CLASSES]), tf.zeros([0], tf.int32), [], 2
  )
  assert [each.shape for each in sums.values()] == [(2, 4, 5)]
  assert list(metric_lib.client_addends(chosen, sums, tf.zeros(2))) == [
    "mean_macro_f1",
    "num_clients_of_mean_macro_f1",
    "sums_of_balanced_accuracy",
  ]


OWN = """
import tensorflow as tf
from tff_shift.learning import metric
calls = []
def is_sure(logits, y):
  calls.append(0)
  return {per_example}
METRIC = metric.Metric(is_sure, {value}, higher_is_better=False)
"""
SURE = "tf.cast(tf.reduce_max(logits, axis=1) > 2, tf.float32)"
SHARE = "lambda sums, num_examples: sums / num_examples"


@pytest.fixture
def own(tmp_path, monkeypatch):
  """Returns `own(per_example, value)`, which registers the metric sureness."""
  monkeypatch.setattr(metrics, "_registered", {})

  def write(per_example=SURE, value=SHARE, name="sureness"):
    path = tmp_path / f"{name}.py"
    path.write_text(OWN.format(per_example=per_example, value=value))
    return metrics.load(path)

  return write


class TestOwn:
  def test_file_of_a_user_is_measured(self, own, context):
    own()
    evaluate, chosen = evaluation_of(["sureness", "mean_sureness"], 2)
    sure, unsure = [3.0, 0.0], [1.0, 0.0]
    found = evaluate(
      [
        (np.float32(rows), np.zeros(len(rows), np.int32), [0, len(rows)])
        for rows in ([sure], [sure, unsure, unsure, unsure])
      ]
    )
    assert_allclose(found["sureness"][1], 0.4)
    assert_allclose(found["mean_sureness"][1], 0.625)
    assert chosen.directions == {"sureness": False, "mean_sureness": False}

  @pytest.mark.parametrize(
    "functions, message",
    [
      ({"per_example": "logits[:, 0] / 0.0"}, "must be finite"),
      (
        {"per_example": "logits[:, 0] - tf.reduce_mean(logits)"},
        "must not depend on the other examples",
      ),
      ({"per_example": "logits[:, 0] + len(calls)"}, "must be pure"),
      (
        {"value": "lambda sums, num_examples: tf.reduce_sum(sums)"},
        "value must return a float32 tensor [num_domains]; it returned float32"
        " [] for 2 domains",
      ),
    ],
  )
  def test_function_that_breaks_the_contract_is_refused(
    self, own, refusal, functions, message
  ):
    own(**functions)
    line = refusal(metrics.choose, ["sureness"], 3)
    assert line.startswith("metric sureness: ") and message in line

  def test_file_without_a_metric_or_with_a_taken_name(self, own, refusal):
    assert "'macro_f1' already" in refusal(own, name="macro_f1")
    assert "without the prefix mean_" in refusal(own, name="mean_of_mine")


class TestRefusals:
  @pytest.mark.parametrize(
    "names, message",
    [
      (["macro_f"], "did you mean macro_f1"),
      (["nll"], "metric 'nll' is the column loss, which is always measured"),
      (["mean_confusion_matrix"], "a table of counts, which has no mean"),
      (["ece", "ece"], "metrics: ece is repeated"),
    ],
  )
  def test_names(self, refusal, names, message):
    assert message in refusal(metrics.choose, names, 3)

  @pytest.mark.long
  def test_clients_measured_singly_with_an_aggregator_that_hides_them(
    self, refusal
  ):
    def built(aggregator, **options):
      model = models.build(
        "mlp", input_shape=(2,), num_classes=2, input_dtype=np.float32, width=4
      )
      return algorithms.build(
        "fed_avg",
        model,
        algorithms.hparams("fed_avg", client_weighting="uniform"),
        aggregator=factories.build(aggregator, clients_per_round=2),
        num_evaluation_domains=2,
        **options,
      )

    deployment.check_domains(built("secure"), 2)
    assert "metrics=ece is not allowed with an aggregator that hides" in (
      refusal(deployment.check_domains, built("secure", metrics=["ece"]), 2)
    )
