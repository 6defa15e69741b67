"""What the tests of data share: the data sets that are on the disk."""

import numpy as np
import pandas
import pytest
from PIL import Image
from sklearn import datasets as sklearn_datasets

from tff_shift.data import dataset
from tff_shift.data import datasets
from tff_shift.data import table


@pytest.fixture(scope="session")
def load_once():
  """Returns `load(name)`, which reads what has one loader once for all tests.

  It gives the `dataset.Dataset`, checked as that of the name; the test is
  skipped where the data set is not on the disk.
  """
  loaded = {}

  def load(name):
    entry = datasets.get(name)
    if entry.tokenize is not None:
      pytest.skip("text becomes tokens of a model that has to be there")
    loader = entry.load or entry.generate
    if loader not in loaded:
      try:
        loaded[loader] = datasets.load(name)
      except dataset.DatasetNotFoundError as error:
        pytest.skip(str(error))
    return datasets.checked(loaded[loader], entry, name)

  return load


@pytest.fixture(scope="session")
def photographs():
  """`[12, 32, 32, 3]`: pieces of the two photographs of scikit-learn."""
  pieces = []
  for file in ("china.jpg", "flower.jpg"):
    photograph = Image.fromarray(sklearn_datasets.load_sample_image(file))
    small = np.asarray(photograph.resize((96, 64), Image.Resampling.BOX))
    pieces += [
      small[top : top + 32, left : left + 32]
      for top in (0, 32)
      for left in (0, 32, 64)
    ]
  return np.stack(pieces)


@pytest.fixture
def set_labels(monkeypatch):
  """Returns `set_labels(y, num_classes=4, **fields)`.

  Every data set then has these labels and fields; an example is its position.
  """

  def set_labels(y, num_classes=4, **fields):
    loaded = table.of_classes(
      np.arange(len(y), dtype=np.float32)[:, np.newaxis],
      np.asarray(y, np.int32),
      [f"c{label}" for label in range(num_classes)],
      **fields,
    )
    monkeypatch.setattr(datasets, "load", lambda name, **options: loaded)

  return set_labels


def _make_patients(seed=0):
  generator = np.random.default_rng(seed)
  rows = np.arange(240)
  frame = pandas.DataFrame(
    {
      "y": np.where(rows % 2, "yes", "no"),
      "c": np.where(rows // 2 % 2, "p", "q"),
      "t": rows // 80,
      "lab": np.float64(np.float32(generator.normal(5, 2, 240))),
      "ward": generator.choice(["A", "B", "C"], 240),
      "age": generator.integers(20, 90, 240),
    }
  )
  frame.loc[rows % 7 == 0, "lab"] = np.nan
  frame.loc[rows % 11 == 0, "ward"] = np.nan
  return frame


@pytest.fixture(scope="session")
def make_patients():
  """Returns `make(seed=0)`, a frame with missing numbers and categories.

  It has labels y, two clients c, three times t, and the features lab (numbers
  of float32, as x has), ward (categories) and age.
  """
  return _make_patients


def _write_tfds(
  folder,
  name,
  version,
  features,
  splits,
  config=None,
  supervised_keys=("image", "label"),
):
  """Writes a tiny data set with the writers of tensorflow-datasets.

  Args:
    folder: Where tensorflow-datasets puts its data sets.
    name: Name of the data set.
    version: Its version.
    features: The features of the official builder.
    splits: The examples of each split.
    config: Name of the configuration, where there is one.
    supervised_keys: What the data set says of examples and labels.
  """
  import tensorflow_datasets as tfds

  class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """The layout of the official builder, with other examples."""

    VERSION = tfds.core.Version(version)
    BUILDER_CONFIGS = (tfds.core.BuilderConfig(name=config),) if config else ()
    url_infos = None  # Nothing is downloaded, so no checksums are looked up.

    def _info(self):
      return self.dataset_info_from_configs(
        features=(
          tfds.features.FeaturesDict(features)
          if isinstance(features, dict)
          else features
        ),
        supervised_keys=supervised_keys,
        disable_shuffling=True,
      )

    def _split_generators(self, dl_manager):
      del dl_manager
      return {split: enumerate(rows) for split, rows in splits.items()}

    def _generate_examples(self):
      raise AssertionError("the splits bring their own examples")

  Builder.name = name
  with tfds.testing.disable_gcs_access():
    Builder(config=config, data_dir=folder).download_and_prepare()


@pytest.fixture(scope="session")
def write_tfds():
  """Returns `write(folder, name, version, features, splits, config=None)`."""
  return _write_tfds


@pytest.fixture(scope="session")
def write_tfds_images():
  """Returns `write(folder, name, version, shape, num_classes, splits)`.

  Of each example, the splits have the image and the label.
  """

  def write(folder, name, version, shape, num_classes, splits, **options):
    import tensorflow_datasets as tfds

    features = {
      "image": tfds.features.Image(shape=shape),
      "label": tfds.features.ClassLabel(num_classes=num_classes),
    }
    rows = {
      split: [dict(zip(features, pair, strict=True)) for pair in pairs]
      for split, pairs in splits.items()
    }
    _write_tfds(folder, name, version, features, rows, **options)

  return write
