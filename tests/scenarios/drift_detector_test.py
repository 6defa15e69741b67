"""Tests of what clients measure with: the extractor, r, distances and DT."""

import numpy as np
import pytest
from sklearn import preprocessing

from tests.fixtures import tables
from tests.fixtures.arrays import normal
from tff_shift.data import examples
from tff_shift.data import table
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.learning import randomness
from tff_shift.models import input_scaling
from tff_shift.scenarios.dynamic_personalization import drift_detector
from tff_shift.shift import choices
from tff_shift.shift import distances

PERIOD_SIZE = 12


def make_examples(num_examples, seed) -> examples.Examples:
  generator = np.random.default_rng(seed)
  return examples.Examples(
    generator.integers(0, 256, (num_examples, 8, 8, 1), np.uint8),
    np.arange(num_examples, dtype=np.int32) % 3,
  )


DATASET = dynamic_personalization.DynamicPersonalizationDataset(
  "noise",
  make_examples(60, 0),
  make_examples(10, 1),
  make_examples(10, 2),
  make_examples(30, 3),
  table.Schema(classes=("a", "b", "c")),
)


def halves(x):
  """Two features: the brightness of the upper and of the lower half."""
  return np.stack(
    [x[:, :4].mean(axis=(1, 2, 3)), x[:, 4:].mean(axis=(1, 2, 3))], axis=1
  )


ONE, OTHER = np.split(DATASET.test.x, 2)
SCALER = preprocessing.StandardScaler().fit(halves(DATASET.public.x))


def fit(**options) -> drift_detector.Instruments:
  options = {
    "representation": None,
    "representation_size": 4,
    "distance_features": "pixels",
    "period_size": PERIOD_SIZE,
    **options,
  }
  return drift_detector.fit(DATASET, **options)


def test_public_part_is_split_without_a_common_example():
  parts = train, held_out = drift_detector.split_public(DATASET.public, 4)
  assert (len(train.y), len(held_out.y)) == (24, 6)
  together = np.concatenate([train.x, held_out.x]).reshape(30, -1)
  assert len(np.unique(together, axis=0)) == 30
  # Labels stay with their images.
  images = {
    image.tobytes(): label for image, label in zip(*DATASET.public, strict=True)
  }
  for part in parts:
    assert [images[image.tobytes()] for image in part.x] == list(part.y)
  again, _ = drift_detector.split_public(DATASET.public, 4)
  other, _ = drift_detector.split_public(DATASET.public, 5)
  np.testing.assert_array_equal(train.x, again.x)
  assert not np.array_equal(train.x, other.x)
  parts = drift_detector.split_public(make_examples(2, 0), 0)
  assert [len(part.y) for part in parts] == [1, 1]


@pytest.mark.slow
def test_features_of_the_extractor_are_the_embedding(run_in_graph, context):
  del context
  model = drift_detector.extractor_model((8, 8, 1), 3)
  assert model.embedding_size == 32
  weights = run_in_graph(model.initial_weights, randomness.server_seed(0))
  x = DATASET.public.x
  found = drift_detector.make_extractor(model, weights)(x)
  expected = run_in_graph(model.embed, weights.backbone, x)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  assert found.shape == (30, 32)


class TestFit:
  def distance(self, fitted):
    return fitted.distance(fitted.features(ONE), fitted.features(OTHER))

  def test_distance_of_pixels_is_as_it_is(self):
    fitted = fit(threshold=1.5)
    assert self.distance(fitted) == distances.distance(ONE, OTHER)
    assert fitted.threshold == 1.5
    assert fitted.represent is None

  def test_distance_of_features_is_standardised_on_public_data(self):
    fitted = fit(distance_features="extractor", extractor=halves, threshold=0.0)
    scaled = (SCALER.transform(halves(part)) for part in (ONE, OTHER))
    expected = distances.distance(*scaled)
    assert self.distance(fitted) == pytest.approx(expected)
    assert fitted.threshold == 0

  @pytest.mark.parametrize("features", choices.FEATURES)
  def test_threshold_is_the_quantile_without_drift(self, features):
    extractor = halves if features == "extractor" else None
    fitted = fit(
      distance_features=features, extractor=extractor, quantile=0.8, seed=3
    )
    # Of the pool of training.
    pairs = distances.iid_distances(
      fitted.features(DATASET.train.x),
      period_size=PERIOD_SIZE,
      num_pairs=200,
      seed=3,
      scaler=SCALER if extractor else None,
    )
    assert np.mean(pairs <= fitted.threshold) == 0.8

  @pytest.mark.parametrize(
    "name, size", [("moments", 4), ("pca", 6), ("t_sne_map", 6)]
  )
  def test_representation_is_fitted_to_public_data(self, name, size):
    fitted = fit(
      representation=name,
      representation_size=6,
      extractor=halves,
      threshold=0.0,
    )
    assert (fitted.represent.name, fitted.represent.size) == (name, size)
    r = fitted.represent(DATASET.public.x)
    assert r.shape == (size,)
    if name != "t_sne_map":
      # Standardised: of public data itself, means are 0 and deviations 1.
      np.testing.assert_allclose(
        r,
        np.repeat([0, 1], size // 2),
        atol=1e-5 if name == "moments" else 0.05,
      )

  @pytest.mark.parametrize("name", ["pca", "t_sne_map", None])
  def test_unit_of_a_feature_does_not_matter_where_it_is_scaled(self, name):
    # Powers of two round nothing, which t-SNE would magnify.
    units = np.float32([1, 2**-10, 2**13])

    def fit_to(unit):
      public, train = (normal(size, size, 3) * unit for size in (60, 80))
      labelled = (
        examples.Examples(x, np.zeros(len(x), np.int32))
        for x in (public, train)
      )
      return drift_detector.fit(
        DATASET._replace(
          **dict(zip(("public", "train"), labelled, strict=True))
        ),
        representation=name,
        representation_size=4,
        distance_features="pixels",
        period_size=8,
        input_scaling=input_scaling.standardized([train]),
      )

    one, other = fit_to(np.float32(1)), fit_to(units)
    first, second = normal(1, 2, 8, 3)
    np.testing.assert_allclose(
      other.distance(*map(other.features, (first * units, second * units))),
      one.distance(*map(one.features, (first, second))),
      rtol=1e-4,
    )
    assert one.threshold == pytest.approx(other.threshold, rel=1e-4)
    if name is not None:
      np.testing.assert_allclose(
        other.represent(first * units), one.represent(first), atol=1e-3
      )

  @pytest.mark.parametrize(
    "options, start",
    tables.cases("""
{"representation": "mean"}
    representation must be one of t_sne
{"representation": "pca", "representation_size": 5}
    size must be even for pca
{"period_size": 31}
    x must have examples for two periods
{"quantile": 0.0}
    quantile must be above 0
"""),
  )
  def test_bad_values_are_refused(self, options, start, refusal):
    assert refusal(fit, **options).startswith(start)
