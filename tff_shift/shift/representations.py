"""Vectors that represent the data of a period: the hypernetwork's inputs.

Fed-3DA: A Dynamic and Personalized Federated Learning Framework (Wang, Sun, Wo,
Liu; ICASSP 2023), Section 2.3 and Figure 2: "vector r consists of the
low-dimensional features extracted from the samples in D^p using t-SNE". The
paper does not specify how the embeddings of the samples become one vector of a
fixed size. There are four definitions of r here, all without labels:

  t_sne      t-SNE of the period alone, as in the paper; r consists of quantiles
             of its two axes. Every period has its own map, in which positions
             do not correspond to classes: r describes how the data cluster, but
             hardly which classes they are. It is included as a baseline.
  t_sne_map  t-SNE of public data, once and for all clients; r consists of the
             fractions of the period in each region of this map.
  moments    Mean and standard deviation of each feature of an extractor, such
             as a network's backbone.
  pca        Mean and standard deviation of each principal component.

The last three are fitted to public data at the server, and comparable between
periods and clients. All are deterministic and independent of the order of the
examples.

Choices:
  * The default is `moments` of a small network's features, trained at the
    server on public data, by measurement (results/dynamic_personalization.md).
    The paper's own reading carries no information on the classes.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import threadpoolctl
from sklearn import cluster
from sklearn import decomposition
from sklearn import manifold
from sklearn import neighbors
from sklearn import pipeline
from sklearn import preprocessing

from tff_shift._util import arguments
from tff_shift.data import examples as examples_lib
from tff_shift.data import partition
from tff_shift.shift import choices
from tff_shift.shift import distances

# The number of principal components for t-SNE, as used by its authors
# (van der Maaten, Hinton; JMLR 2008, section 4.2).
_T_SNE_COMPONENTS = 30
_PERPLEXITY = 30
# t-SNE of a large data set would take minutes.
_MAP_EXAMPLES = 1000
# A new example is placed between this number of nearest public examples.
_MAP_NEIGHBOURS = 3

_Rows = np.ndarray  # [n, features] float64.


@dataclasses.dataclass(frozen=True)
class Representation:
  """A function from the examples of a period to a vector r.

  Attributes:
    name: One of `choices.REPRESENTATIONS`.
    size: The length of r.
  """

  name: str
  size: int
  _extractor: Callable[[np.ndarray], np.ndarray] | None
  _num_features: int
  _summary: Callable[[_Rows], np.ndarray]
  _prepare: Callable[[np.ndarray], np.ndarray]

  def __call__(self, x: np.ndarray) -> np.ndarray:
    """Computes r.

    Args:
      x: The examples of a period, [n, ...] of the shape of the public ones, at
        least two.

    Returns:
      [size] float32.

    Raises:
      ValueError: If there are fewer than two examples, their shape differs, or
        a number is not finite.
    """
    x = self._prepare(x)
    rows = _rows("examples of a period", x, self._extractor)
    if rows.shape[1] != self._num_features:
      raise ValueError(
        "examples of a period must have as many features as the public ones,"
        f" {self._num_features}, got {rows.shape[1]}"
      )
    return np.asarray(self._summary(rows), np.float32)


def fit(
  name: str,
  public_x: np.ndarray,
  *,
  size: int = 64,
  extractor: Callable[[np.ndarray], np.ndarray] | None = None,
  prepare: Callable[[np.ndarray], np.ndarray] = lambda x: x,
  seed: int = 0,
) -> Representation:
  """Fits a representation to public data.

  Args:
    name: One of `choices.REPRESENTATIONS`.
    public_x: Public examples, [n, ...], at least two; uint8 images are
      converted to floats between 0 and 1.
    size: The length of r: one number for each region of `t_sne_map`, two for
      each component of `pca`, and half of it for each axis of `t_sne`. For
      `moments` it is twice the number of features.
    extractor: For `moments`: examples [n, ...] -> features [n, features].
    prepare: Preprocessing of examples, such as scaling.
    seed: Seed of the random steps of fitting.

  Returns:
    The representation.

  Raises:
    ValueError: If a value is not allowed or does not fit the public data.
  """
  arguments.choice("representation", name, choices.REPRESENTATIONS)
  partition.check_positive_integer("size", size)
  if (name == "moments") != (extractor is not None):
    raise ValueError(
      "extractor must be given for moments, and for nothing else; the"
      f" representation is {name}"
    )
  if name in ("t_sne", "pca") and size % 2:
    raise ValueError(f"size must be even for {name}, got {size}")
  public = _rows("public examples", prepare(public_x), extractor)
  rng = partition.generator("representation", seed)
  # scikit-learn takes only a number or NumPy's old generator.
  random_state = int(rng.integers(2**31))
  if name == "moments":
    size = 2 * public.shape[1]
    summary = _fit_moments(public)
  elif name == "pca":
    summary = _fit_pca(public, size, random_state)
  elif name == "t_sne":
    summary = _fit_t_sne(public, size, random_state)
  else:
    public = public[np.sort(rng.permutation(len(public))[:_MAP_EXAMPLES])]
    summary = _fit_t_sne_map(public, size, random_state)
  return Representation(
    name, size, extractor, public.shape[1], summary, prepare
  )


def _rows(name, x, extractor) -> _Rows:
  """Returns the examples or their features as rows in a canonical order."""
  rows = distances.as_rows(name, x, 2)
  # Sums, t-SNE's start and its path depend on the order by rounding errors,
  # which t-SNE magnifies. Sorting by bytes makes the order canonical; rows with
  # equal bytes are interchangeable.
  order = sorted(range(len(rows)), key=lambda i: rows[i].tobytes())
  if extractor is None:
    return rows[order]
  features = distances.as_rows("features", extractor(np.asarray(x)[order]), 2)
  if len(features) != len(rows):
    raise ValueError(
      "extractor must give features for each example, got"
      f" {len(features)} for {len(rows)}"
    )
  return features


def _mean_and_deviation(rows) -> np.ndarray:
  return np.concatenate([rows.mean(axis=0), rows.std(axis=0)])


def standard_scaler(public: _Rows) -> preprocessing.StandardScaler:
  """Fits the standardisation of features, [n, features].

  Features that are constant, up to the rounding of float32, are only shifted
  to 0: divided by a deviation that is rounding, any new value would be a drift.
  """
  scaler = preprocessing.StandardScaler().fit(np.asarray(public, np.float64))
  deviation = np.sqrt(scaler.var_)
  scaler.scale_[examples_lib.is_rounding(deviation, scaler.mean_)] = 1.0
  return scaler


def _fit_moments(public):
  scaler = standard_scaler(public)
  return lambda rows: _mean_and_deviation(scaler.transform(rows))


def _fit_pca(public, size, random_state):
  # Whitened: the standard deviation of public data is 1 in each component.
  pca = _components(public, size // 2, random_state, whiten=True)
  variances = pca[-1].explained_variance_
  rank = int(np.sum(variances > np.finfo(np.float64).eps * variances[0]))
  # Divided by a deviation that is rounding, new examples would have any r.
  if rank < len(variances):
    raise ValueError(
      f"size must be at most {2 * rank} for pca with public examples that vary"
      f" in {rank} directions only, got {size}"
    )
  return lambda rows: _mean_and_deviation(pca.transform(rows))


def _components(public, number, random_state, whiten=False):
  """Fits principal components."""
  most = min(public.shape)
  if number > most:
    raise ValueError(
      f"size must be at most {2 * most} for pca with public examples"
      f" {list(public.shape)}, got {2 * number}"
    )
  # Centred first: scikit-learn computes covariances as E[x^2] - E[x]^2, which
  # has no digits left far from zero.
  return pipeline.make_pipeline(
    preprocessing.StandardScaler(with_std=False),
    decomposition.PCA(number, whiten=whiten, random_state=random_state),
  ).fit(public)


def _reduced(public, random_state):
  """Fits the input of t-SNE: the first components, or all if fewer."""
  return _components(
    public, min(_T_SNE_COMPONENTS, *public.shape), random_state
  )


def _embed(rows, random_state) -> np.ndarray:
  """Embeds rows by t-SNE, [n, 2]; axes have mean 0, standard deviation 1."""
  if rows.shape[1] < 2:
    raise ValueError("examples must have at least two features for t-SNE")
  if not np.ptp(rows, axis=0).any():
    # Equal examples: there is nothing to embed.
    return np.zeros([len(rows), 2])
  # Rounding in t-SNE's sums depends on the order of several threads.
  with threadpoolctl.threadpool_limits(1):
    embedding = manifold.TSNE(
      2,
      init="pca",
      perplexity=min(_PERPLEXITY, (len(rows) - 1) / 3),
      random_state=random_state,
    ).fit_transform(rows)
  return preprocessing.StandardScaler().fit_transform(
    embedding.astype(np.float64)
  )


def _fit_t_sne(public, size, random_state):
  """Makes the summary by quantiles of the two axes of a period's own t-SNE.

  The sign of an axis is arbitrary. The longer tail is made positive, so that
  the sign depends only on the shape.
  """
  pca = _reduced(public, random_state)
  number = size // 2
  probabilities = (np.arange(number) + 0.5) / number

  def summary(rows):
    embedding = _embed(pca.transform(rows), random_state)
    is_negative = (embedding**3).mean(axis=0) < 0
    oriented = np.where(is_negative, -embedding, embedding)
    return np.quantile(oriented, probabilities, axis=0).T.ravel()

  return summary


def _fit_t_sne_map(public, size, random_state):
  """Makes the summary by fractions of the regions of a common map.

  t-SNE itself cannot place new examples. They are placed between their nearest
  public examples, weighted by the inverse of the distance. Regions are the
  clusters of the map (k-means); a fraction is given in units of 1 / size, the
  average fraction.
  """
  if size > len(public):
    raise ValueError(
      f"size must be at most {len(public)}, the number of public examples"
      f" that t_sne_map takes, got {size}"
    )
  pca = _reduced(public, random_state)
  coordinates = pca.transform(public)
  embedding = _embed(coordinates, random_state)
  with threadpoolctl.threadpool_limits(1):
    regions = cluster.KMeans(size, n_init=4, random_state=random_state).fit(
      embedding
    )
  places = neighbors.KNeighborsRegressor(
    min(_MAP_NEIGHBOURS, len(public)), weights="distance"
  ).fit(coordinates, embedding)

  def summary(rows):
    found = regions.predict(places.predict(pca.transform(rows)))
    return size * np.bincount(found, minlength=size) / len(rows)

  return summary
