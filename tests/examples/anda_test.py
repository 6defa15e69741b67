"""Drift of any kind: what each kind changes, and how distributions follow."""

import numpy as np
import pytest

from examples import anda
from tests.fixtures import tables
from tff_shift.data import datasets

_SIZE = 4


def make_images():
  """4,000 different images without full channels, in ten classes."""
  generator = np.random.default_rng(0)
  x = generator.integers(0, 255, [4000, _SIZE, _SIZE, 1], np.uint8)
  return x, np.arange(4000) % 10


IMAGES = make_images()


def draw(kind, **options):
  found = anda.drift(
    *IMAGES, kind=kind, **{"num_clients": 4, "num_steps": 5} | options
  )
  return found, found.arrays


def steps(found, first=0):
  """Yields each client and step: its distribution, images and labels."""
  for client, numbers in enumerate(found.distributions):
    for time, number in enumerate(numbers, first):
      mine = (found.arrays["client"] == client) & (
        found.arrays["domain"] == time
      )
      yield number, found.arrays["x"][mine], found.arrays["y"][mine]


@pytest.fixture(scope="module")
def originals():
  """The number of each image, and its turns, by the bytes of a channel."""
  return {
    np.rot90(image[..., 0], turns).tobytes(): (place, turns)
    for place, image in enumerate(IMAGES[0])
    for turns in range(4)
  }


class TestKinds:
  @pytest.mark.parametrize("rotations", [1, 2, 4])
  def test_covariate_turns_and_colours_a_step_alike(self, originals, rotations):
    found, _ = draw("covariate", num_rotations=rotations)
    patterns, places = {}, []
    for number, x, y in steps(found):
      # One channel is filled, and the other two are the image.
      (full,) = np.flatnonzero((x == 255).all((0, 1, 2)))
      numbers, turns = zip(
        *(originals[image[..., full - 1].tobytes()] for image in x), strict=True
      )
      (turn,) = set(turns)
      assert turn % (4 // rotations) == 0
      assert patterns.setdefault(number, (full, turn)) == (full, turn)
      np.testing.assert_array_equal(np.array(numbers) % 10, y)
      places += numbers
    # Each image is at one client, in one step.
    assert sorted(places) == list(range(4000))

  def test_label_has_few_classes_and_the_images(self, originals):
    found, arrays = draw("label")
    sets = {}
    for number, x, y in steps(found):
      classes = tuple(np.unique(y))
      assert len(classes) == 2
      assert sets.setdefault(number, classes) == classes
      assert {originals[each[..., 0].tobytes()][1] for each in x} == {0}
    assert arrays["x"].shape[-1] == 1

  def test_concept_exchanges_labels_and_keeps_images(self, originals):
    found, arrays = draw("concept")
    maps = {}
    for number, x, y in steps(found):
      for image, label in zip(x, y.tolist(), strict=True):
        place, turn = originals[image[..., 0].tobytes()]
        assert turn == 0
        # Each class has one other label in a distribution.
        mapping = maps.setdefault(number, {})
        assert mapping.setdefault(place % 10, label) == label
    for mapping in maps.values():
      assert sorted(mapping.values()) == sorted(mapping)
    moved = {
      old for each in maps.values() for old, new in each.items() if old != new
    }
    assert 2 <= len(moved) <= 3
    assert arrays["x"].shape[-1] == 1

  def test_class_conditional_changes_two_classes_alone(self):
    found, _ = draw("class_conditional", num_rotations=1)
    for _, x, y in steps(found):
      colored = (x == 255).all((1, 2)).any(-1)
      assert colored.any()
      assert len(np.unique(y[colored])) == 2
      assert not set(y[colored]) & set(y[~colored])


class TestDistributions:
  @pytest.mark.parametrize("kind", anda.KINDS)
  def test_last_step_is_new_and_there_are_few_before(self, kind):
    found, _ = draw(kind, num_steps=6, max_distributions=3)
    for *before, last in found.distributions:
      assert last not in before
      assert len(set(before)) <= 3
    assert len(np.unique(found.distributions)) > 2

  @pytest.mark.parametrize("continual", [True, False])
  def test_clients_return_unless_drift_is_continual(self, continual):
    found, _ = draw(
      "label", num_steps=30, max_distributions=4, continual=continual
    )
    for *before, _ in found.distributions:
      parts = 1 + np.count_nonzero(np.diff(before))
      assert (parts == len(set(before))) == continual

  def test_same_seed_same_clients(self):
    (_, one), (_, same), (_, other) = (
      draw("concept", seed=seed) for seed in (1, 1, 2)
    )
    for name, values in one.items():
      np.testing.assert_array_equal(values, same[name])
    assert not np.array_equal(one["x"], other["x"])


def test_labelled_images_come_first_and_unchanged(originals):
  found, arrays = draw("covariate", labelled_fraction=0.4)
  first = arrays["domain"] == 0
  assert np.bincount(arrays["client"][first]).tolist() == [400] * 4
  places = [originals[each[..., 0].tobytes()] for each in arrays["x"][first]]
  assert {turn for _, turn in places} == {0}
  # Grey in three channels, as there are coloured ones.
  assert (np.ptp(arrays["x"][first], axis=-1) == 0).all()
  assert arrays["domain"].max() == 6
  assert [len(y) for _, _, y in steps(found, 1)] == [100] * 24


@pytest.mark.parametrize("scenario", ["evolving", "online_adaptation"])
def test_file_is_a_data_set_of_the_scenarios(tmp_path, scenario):
  _, arrays = draw("concept", labelled_fraction=0.4)
  path = tmp_path / "drift.npz"
  np.savez(path, **arrays)
  assert datasets.get(str(path), scenario).num_clients == 4
  np.testing.assert_array_equal(datasets.load(str(path)).y, arrays["y"])


@pytest.mark.parametrize(
  "options, words",
  tables.cases("""
{"kind": "colour"}
    kind must be one of covariate
{"kind": "label", "num_colors": 2}
    num_colors does not apply to
{"kind": "covariate", "num_classes_changed": 2}
    num_classes_changed
{"kind": "covariate", "num_rotations": 3}
    num_rotations must be 1, 2 or
{"kind": "concept", "max_distributions": 6}
    max_distributions=6 is not allowed
{"kind": "concept", "labelled_fraction": 1.0}
    labelled_fraction must be
{"kind": "concept", "num_classes_changed": 7}
    num_classes_changed=7 is not allowed: .* at most 6
{"kind": "concept", "num_clients": 3000}
    would have no image in step
"""),
)
def test_refusals(options, words):
  with pytest.raises(ValueError, match=words) as caught:
    draw(options.pop("kind"), **options)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "shape, dtype, y",
  [
    ([4, 3], np.uint8, np.arange(4)),
    ([4, 3, 3, 1], np.float32, np.arange(4)),
    ([4, 3, 3, 1], np.uint8, np.arange(3)),
    ([4, 3, 3, 1], np.uint8, np.zeros(4)),
  ],
)
def test_what_is_no_image_or_class_is_refused(shape, dtype, y):
  with pytest.raises(ValueError, match=r"^[xy] must be"):
    anda.drift(np.zeros(shape, dtype), y, kind="covariate", num_clients=2)


def test_four_turns_need_squares(refusal):
  x = np.zeros([40, 3, 4, 1], np.uint8)
  assert "needs square images, got 3 x 4" in refusal(
    anda.drift,
    x,
    np.arange(40),
    kind="covariate",
    num_clients=1,
    num_rotations=4,
  )
