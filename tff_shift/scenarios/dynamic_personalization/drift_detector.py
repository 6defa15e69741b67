"""Drift detection at clients: representations r, distances and the threshold.

Fed-3DA: A Dynamic and Personalized Federated Learning Framework (Wang, Sun, Wo,
Liu; ICASSP 2023), Sections 2.2 and 2.3. Everything is fitted at the server,
before any drift: representations and a feature extractor on public data, the
threshold DT on IID periods of the training pool.

The paper does not specify the space of the distance. Here it is either the
space of pixels, since its Section 2.1 calls x the features, or the feature
space of the extractor, a small network that is trained on public data and then
fixed.
"""

import math
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_shift import models
from tff_shift._util import arguments
from tff_shift.data import examples
from tff_shift.data import partition
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.learning import evaluation
from tff_shift.models import input_scaling as scaling_lib
from tff_shift.models import split_model
from tff_shift.shift import distances
from tff_shift.shift import representations

# The threshold's sample of distances: enough for a quantile of 0.95.
_NUM_PAIRS = 200

# Channels of the extractor's four convolutions; the last gives the features.
_EXTRACTOR_CHANNELS = (16, 32, 32, 32)
_HELD_OUT_SHARE = 0.2

_Function = Callable[[np.ndarray], np.ndarray]


class Instruments(NamedTuple):
  """The functions with which a client detects drift, without labels.

  Attributes:
    represent: Maps the examples of a period to r. None: not needed.
    features: Maps examples to the features of distances, [n, ...].
    distance: Maps the features of two periods to their distance.
    threshold: DT: a larger distance is a drift.
  """

  represent: representations.Representation | None
  features: _Function
  distance: Callable[[np.ndarray, np.ndarray], float]
  threshold: float


def extractor_model(
  input_shape: tuple[int, ...],
  num_classes: int,
  input_scaling: scaling_lib.InputScaling | None = None,
  input_dtype: tf.DType = tf.uint8,
) -> split_model.SplitModel:
  """Builds the network whose backbone is the extractor.

  Args:
    input_shape: Height, width and channels of an image, or the length of a
      vector.
    num_classes: The number of classes.
    input_scaling: The scaling of pixels or features, see `models.build`.
    input_dtype: `tf.uint8` of images, `tf.float32` of vectors.

  Returns:
    The network, with an embedding of size 32: a `cnn` for images, an `mlp` for
    vectors.
  """
  width = _EXTRACTOR_CHANNELS[-1]
  name = "mlp" if len(input_shape) == 1 else "cnn"
  options: dict[str, Any] = {"channels": _EXTRACTOR_CHANNELS}
  if name == "mlp":
    options = {"width": width}
  return models.build(
    name,
    input_shape=input_shape,
    num_classes=num_classes,
    head_width=width,
    input_dtype=input_dtype,
    input_scaling=input_scaling,
    **options,
  )


def split_public(
  public: examples.Examples, seed: int, groups: np.ndarray | None = None
) -> tuple[examples.Examples, examples.Examples]:
  """Splits public data into the extractor's training and validation data.

  Args:
    public: The public data, at least two examples.
    seed: Seed of the split.
    groups: The groups that stay in one part, see `partition.cut`. None:
      examples are independent.

  Returns:
    Four fifths for training; one fifth, at least one example, for validation
    (early stopping).

  Raises:
    ValueError: If there is only one group.
  """
  order = partition.generator("extractor", seed).permutation(len(public.y))
  num_held_out = max(1, round(_HELD_OUT_SHARE * len(order)))
  held_out, train = partition.cut(order, [num_held_out], groups)
  if not len(held_out):
    raise ValueError(
      f"the {len(order)} public examples are of one group, which leaves none to"
      " validate the extractor; use a larger public_fraction"
    )
  return (
    examples.Examples(public.x[train], public.y[train]),
    examples.Examples(public.x[held_out], public.y[held_out]),
  )


def make_extractor(
  model: split_model.SplitModel, weights: split_model.SplitWeights
) -> _Function:
  """Makes a function of a trained backbone that runs on TFF's executor.

  Args:
    model: The model.
    weights: Its weights, NumPy arrays.

  Returns:
    Maps examples [n, ...] to embeddings [n, embedding_size] float32.
  """

  @tff.tensorflow.computation(
    tff.TensorType(model.input_dtype.as_numpy_dtype, (None, *model.input_shape))
  )
  def extract(x):
    return evaluation.predict_in_batches(
      lambda batch: model.embed(weights.backbone, batch),
      x,
      model.embedding_size,
    )

  return lambda x: np.asarray(extract(x))


def checked_threshold(threshold: float) -> float:
  """Validates DT, a number; infinite: no distance is a drift."""
  if threshold == math.inf:
    return math.inf
  return arguments.number("threshold", threshold)


def fit(
  dataset: dynamic_personalization.DynamicPersonalizationDataset,
  *,
  representation: str | None,
  representation_size: int,
  distance_features: str,
  period_size: int,
  extractor: _Function | None = None,
  input_scaling: scaling_lib.InputScaling = scaling_lib.ZERO_ONE,
  threshold: float | None = None,
  quantile: float = 0.95,
  seed: int = 0,
) -> Instruments:
  """Fits the functions for drift detection.

  Args:
    dataset: The data set; its parts `public` and `train` are used.
    representation: One of `choices.REPRESENTATIONS`. None: no client needs r.
    representation_size: The length of r; ignored by `moments`, whose length is
      fixed.
    distance_features: One of `FEATURES`. Features of the extractor are
      standardised to mean 0 and standard deviation 1 on public data; pixels are
      not.
    period_size: The number of examples in a period, for the threshold.
    extractor: For `moments` and for distances in its space.
    input_scaling: Scaling of vectors if no extractor scales them: otherwise the
      feature with the largest unit would dominate. Pixels have a common unit.
    threshold: DT. None: the quantile of distances between IID periods of the
      training pool.
    quantile: The fraction of these distances that is not a drift.
    seed: Seed of the random steps of fitting.

  Returns:
    The functions.

  Raises:
    ValueError: If a value does not fit the data.
  """

  def scaled(x):
    return x if x.dtype == np.uint8 else input_scaling.of_array(x)

  represent = None
  if representation is not None:
    of_extractor = {"extractor": extractor}
    represent = representations.fit(
      representation,
      dataset.public.x,
      size=representation_size,
      seed=seed,
      **(of_extractor if representation == "moments" else {"prepare": scaled}),
    )
  features, scaler = scaled, None
  if distance_features == "extractor":
    features = extractor
    scaler = representations.standard_scaler(extractor(dataset.public.x))

  def distance(one, other):
    return distances.distance(one, other, scaler=scaler)

  if threshold is None:
    threshold = distances.calibrate(
      distances.iid_distances(
        features(dataset.train.x),
        period_size=period_size,
        num_pairs=_NUM_PAIRS,
        seed=seed,
        scaler=scaler,
      ),
      quantile,
    )
  return Instruments(represent, features, distance, threshold)
