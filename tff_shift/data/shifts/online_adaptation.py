"""Streams of unlabelled data with a drifting distribution for each client.

Fed-ADE: Adaptive Learning Rate for Federated Post-adaptation under Distribution
Shift (Park, Joe, Kim, Im, Kwon; 2026), eq. 1 and Appendix G. A data set is
split into four disjoint parts: for pre-training; for its early stopping and the
confusion matrix; for the clients' labelled data before deployment; and for the
streams.

  - Label shift: Q_t = (1 - omega(t)) Q_0 + omega(t) Q_T, Q_0 uniform, Q_T drawn
    for each client from a Dirichlet distribution. Both are over the classes of
    which the client can draw examples: they occur, the client holds them, and
    they are assigned to it. The drawn examples therefore have distribution Q_t.
  - Covariate shift: a client has one corruption; its severity is 5 omega(t),
    rounded (see `SEVERITIES`); its classes are uniform.

Your own data are pre-trained on as they are: all examples from before
deployment. They may have classes that never occur, and rare ones. The
distributions of pre-training and of labelled data are over the classes that
occur before deployment. All examples of a rare class are used, see
`load_online_adaptation`.

Your own data with domains have their own drift, which is not drawn: the first
domain is before deployment, and each other domain is a time step, at which a
client has all its examples in the order of the rows, or none.

Choices:
  * omega is the same for all clients, as in eq. 1.
  * At severity 0 an image is clean. A client keeps one of the 19 corruptions;
    each occurs before any occurs twice. `--corrupted_images=archive` reads
    CIFAR-10-C and CIFAR-100-C instead of computing corruptions.
  * A draw over all classes, restricted to those of the client and rescaled, is
    a Dirichlet draw over these. Q_t, the shift and its correlations refer to
    the distributions that are sampled.
  * Streams are drawn with replacement from the test part of a data set (digits:
    a random 30 %), 50 examples per step (`--samples_per_step`).
  * A client has 100 labelled examples (`--initial_examples`) with the label
    distribution of pre-training, from a part that pre-training does not use: on
    examples seen in pre-training, the risk of eq. 4 is near 0. Clients may
    share examples. A client with fewer examples takes all of them; such clients
    are counted.
  * The data not used for streams are split 65 : 15 : 20 into pre-training,
    early stopping and confusion matrix, and clients. By default at most half of
    the pre-training part is used (`--max_pretraining_examples`), less if a
    skewed distribution asks for more examples of a class than there are. A
    class with less than half of the examples that the distribution asks for
    does not limit the number: all its examples are used, with a warning. With
    the exact distribution, six examples of one class of ten would leave 30 to
    pre-train on.
  * The Gaussian and exponential-decay distributions of pre-training, whose
    parameters the paper does not print, are exp(-(i - (I - 1) / 2)^2 / (2 (I /
    4)^2)) and 10^(-i / (I - 1)).
"""

import functools
import os
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tff_shift._util import arguments
from tff_shift.data import datasets
from tff_shift.data import examples as examples_lib
from tff_shift.data import partition
from tff_shift.data import preparation
from tff_shift.data import table
from tff_shift.data.images import corruptions
from tff_shift.data.shifts import class_pools
from tff_shift.data.shifts import fixed_batches
from tff_shift.data.shifts import own_drift

SCENARIO = "online_adaptation"
SHIFT_KINDS = ("label", "covariate")
# The severity of a weight omega: 5 omega, rounded; or, as in the program of
# Fed-ADE's authors, 4 omega, rounded up, plus 1, at most 5.
SEVERITIES = ("zero_to_five", "one_to_five")
# The corruptions of a run: all, or the benchmark's without its extra ones.
CORRUPTION_SETS = ("all", "benchmark")
_NUM_BENCHMARK = 15

# Fractions of the examples without streams: pre-training, held out, clients.
_PART_SHARES = (0.65, 0.15, 0.2)
# The fraction for streams in a data set without a test part.
_STREAM_SHARE = 0.3

# A label distribution of pre-training: all labelled examples, as they are.
AS_IS = "as_is"
PRETRAINING_DISTRIBUTIONS = (*class_pools.PRETRAINING_DISTRIBUTIONS, AS_IS)

# Number of rare classes that a message names.
_NUM_LISTED = 3


class OnlineAdaptationDataset(NamedTuple):
  """A data set in its four parts.

  Attributes:
    name: Its name, see `datasets.get`.
    pretraining: The examples for pre-training.
    validation: The examples for early stopping and the confusion matrix.
    labelled: All examples from before deployment, for a last training with the
      number of epochs that early stopping chose (`pretrain(refit=...)`). None:
      there is no such training.
    num_labelled: The number of examples from before deployment.
    initial: The pool of the clients' labelled data.
    stream: The pool of the streams.
    schema: The names of classes, clients, times and features.
    class_distribution: The requested label distribution of pre-training,
      [num_classes]; 0 for a class that does not occur before deployment.
    initial_client: `[n]` integers, the client that holds an example of
      `initial`. None: all clients draw from all examples.
    stream_client: `[n]` integers, the client that holds an example of `stream`.
      None: all clients draw from all examples.
    client_classes: The classes of each client, see `class_pools.deal_classes`;
      only classes that occur are assigned. None: clients have all classes.
    streams: The streams of data with domains, of all examples of `stream`.
      None: streams are drawn.
    groups: The groups from before deployment, and those of `stream`. None:
      examples are independent.
  """

  name: str
  pretraining: examples_lib.Examples
  validation: examples_lib.Examples
  initial: examples_lib.Examples
  stream: examples_lib.Examples
  schema: table.Schema
  class_distribution: np.ndarray
  initial_client: np.ndarray | None = None
  stream_client: np.ndarray | None = None
  client_classes: tuple[np.ndarray, ...] | None = None
  streams: fixed_batches.Streams | None = None
  labelled: examples_lib.Examples | None = None
  num_labelled: int = 0
  groups: table.Sides | None = None


class Online(NamedTuple):
  """The data of `ts.run_online_adaptation`, beside a pre-trained model.

  Attributes:
    initial: Each client's labelled examples, for `ts.Deployment`.
    streams: The clients' streams.
  """

  initial: tuple[examples_lib.Examples, ...]
  streams: fixed_batches.Streams


def deal(content: table.Table, *, omega: npt.ArrayLike | None = None) -> Online:
  """Divides the examples of clients by time, for `ts.run_online_adaptation`.

  Args:
    content: The examples, with clients and times. The first time is before
      deployment, and its examples are labelled; a client that joins later has
      none, and `ts.Deployment` then needs labelled examples of the server
      (`held_out`). At the others, time steps, y is for evaluation only and
      hidden from adaptation; a client without examples is absent.
    omega: A number for each of the time steps 0..T, such as the extent of the
      shift. None: not known.

  Returns:
    The labelled examples and the streams.

  Raises:
    ValueError: If there is only one time, or `omega` does not fit.
  """
  num_times = len(content.schema.times)
  if num_times < 2:
    raise ValueError(f"there must be at least 2 times, got {num_times}")
  extent = None
  if omega is not None:
    extent = examples_lib.checked_array(
      np.asarray(examples_lib.as_array(omega, "omega"), np.float64),
      "omega",
      shape=(num_times,),
      dtype=np.float64,
    )
  _, batches = table.take_groups(content, table.positions(content))
  initial = tuple(client[0] for client in batches)
  return Online(
    initial,
    fixed_batches.Streams(
      [client[1:] for client in batches],
      extent,
      len(content.schema.classes),
      [labelled.y for labelled in initial],
    ),
  )


def default_distribution(name: str) -> str:
  """Returns the label distribution of pre-training, unless it is set.

  Args:
    name: The name of the data set, see `datasets.get`.

  Returns:
    `as_is` for a user's data, and `uniform`, as in the paper, for others.
  """
  return AS_IS if datasets.is_own(name) else "uniform"


def load_online_adaptation(
  name: str,
  *,
  pretraining_distribution: str | None = None,
  max_pretraining_examples: int | None = None,
  data_dir: str | os.PathLike[str] | None = None,
  seed: int = 0,
  model_dir: str | os.PathLike[str] | None = None,
  disjoint_clients: int | None = None,
  num_clients: int | None = None,
) -> OnlineAdaptationDataset:
  """Loads a data set and splits it into its four parts.

  If examples belong to clients, the examples of each client are split. If they
  belong to domains, the examples of each client in the first domain are split
  into the first three parts.

  A class is rare if pre-training has less than half of the examples that the
  distribution requires. All of its examples are then used, the other classes
  fill the rest in proportion, and a warning is issued.

  Args:
    name: The name of the data set, see `datasets.get`.
    pretraining_distribution: `uniform`, `gaussian` or `exponential_decay`, see
      `class_pools.pretraining_distribution`, over the classes that occur before
      deployment; or `as_is`: all examples from before deployment, see
      `OnlineAdaptationDataset.labelled`; the part `validation` is held out from
      `pretraining`. None: see `default_distribution`.
    max_pretraining_examples: The maximum number of examples for pre-training,
      in the distribution as closely as possible. None: all with `as_is`;
      otherwise half of the part, but, without a rare class, at most as many as
      keep the distribution.
    data_dir: The folder of all data sets, see `dataset`.
    seed: Seed of the split.
    model_dir: The folder of the pre-trained model that tokenizes texts.
    disjoint_clients: Assigns the classes to this number of clients, see
      `class_pools.deal_classes`; pre-training has all classes. None: each
      client has all. Not for data with domains.
    num_clients: The number of clients to which examples with domains and
      without clients are dealt, IID. None: the data assign clients, or have no
      domains.

  Returns:
    The data set.

  Raises:
    ValueError: If a name is unknown or a number is not allowed.
    FileNotFoundError: If the model's tokenizer is missing.
    DatasetNotFoundError: If the data set is not on the disk.

  Examples:
    >>> dataset = ts.load_online_adaptation("digits", seed=0)
    >>> len(dataset.schema.classes), dataset.stream.x.shape[1:]
    (10, (28, 28, 1))
  """
  # Refuses data sets that the scenario cannot use.
  has_times = bool(own_drift.time_names(name, SCENARIO, data_dir))
  if pretraining_distribution is None:
    pretraining_distribution = default_distribution(name)
  source = datasets.load(name, data_dir=data_dir, model_dir=model_dir)
  rng = partition.generator("online parts", seed)
  if has_times:
    if disjoint_clients is not None:
      raise ValueError(
        f"disjoint_clients does not apply to {name}, whose streams are given"
      )
    return _load_with_times(
      name,
      source,
      num_clients,
      seed,
      rng,
      pretraining_distribution,
      max_pretraining_examples,
    )
  if num_clients is not None:
    raise ValueError(
      f"num_clients does not apply to {name}, which has no domains to deal"
    )
  groups = [np.arange(len(source.y))]
  if source.client is not None:
    groups = partition.by_client(source.client, source.client.max() + 1)
  sides = partition.no_sides(source.group)
  cuts = [_cut(source, rows, rng, sides) for rows in groups]
  for client, (_, _, initial, stream) in enumerate(cuts):
    if source.client is not None and not (len(initial) and len(stream)):
      raise ValueError(
        f"client {source.schema.client_name(client)} of {name} has"
        f" {table.size_of(source, groups[client])}, too few for labelled ones"
        " and a stream; it must have 5 or more, and with num_train some in both"
        " parts"
      )
  parts = [np.concatenate(part) for part in zip(*cuts, strict=True)]
  pretraining, validation, initial, stream = parts
  if sides is not None and not all(map(len, parts)):
    raise ValueError(
      f"{name} has {table.size_of(source, np.arange(len(source.y)))}, too few"
      " groups for pre-training, early stopping, labelled examples and streams"
    )
  occurring = np.unique(source.y)
  fitted = _fitted(
    name,
    source,
    [pretraining, validation, initial],
    pretraining_distribution,
    max_pretraining_examples,
    rng,
  )

  def take(positions):
    return examples_lib.take(source, np.sort(positions))

  dataset = OnlineAdaptationDataset(
    name=name,
    **fitted,
    validation=take(validation),
    initial=take(initial),
    stream=take(stream),
    groups=table.sides_of(source, parts[:3], stream),
    schema=source.schema,
    initial_client=_clients_of(source, initial),
    stream_client=_clients_of(source, stream),
    client_classes=(
      None
      if disjoint_clients is None
      else tuple(
        occurring[assigned]
        for assigned in class_pools.deal_classes(
          len(occurring), disjoint_clients, seed
        )
      )
    ),
  )
  return preparation.prepared(dataset, [dataset.pretraining.x])


def _load_with_times(
  name: str,
  source: table.Table,
  num_clients: int | None,
  seed: int,
  rng: np.random.Generator,
  pretraining_distribution: str,
  max_pretraining_examples: int | None,
) -> OnlineAdaptationDataset:
  """Splits the first domain of a data set; the others are the streams."""
  source = own_drift.with_clients(source, num_clients, seed, name)
  time_names = source.schema.times
  groups = table.positions(source)
  sides = partition.no_sides(source.group)
  parts = [
    np.concatenate(part)
    for part in zip(
      *(
        _split_labelled(source, rng.permutation(client_rows[0]), sides)
        for client_rows in groups
      ),
      strict=True,
    )
  ]
  first = np.concatenate([client_rows[0] for client_rows in groups])
  if not all(map(len, parts)):
    raise ValueError(
      f"{time_names[0]!r} of {name}, before deployment, has"
      f" {table.size_of(source, first)}, too few for pre-training, early"
      " stopping and labelled examples of clients"
    )
  pretraining, validation, initial = parts
  fitted = _fitted(
    f"{time_names[0]!r} of {name}",
    source,
    [pretraining, validation, initial],
    pretraining_distribution,
    max_pretraining_examples,
    rng,
  )
  stream, batches = table.take_groups(
    source, [client_rows[1:] for client_rows in groups]
  )
  dataset = OnlineAdaptationDataset(
    name=name,
    **fitted,
    validation=examples_lib.take(source, np.sort(validation)),
    initial=examples_lib.take(source, np.sort(initial)),
    stream=stream,
    groups=table.sides_of(source, parts, np.flatnonzero(source.time)),
    schema=source.schema,
    initial_client=_clients_of(source, initial),
    streams=fixed_batches.Streams(
      batches,
      None,
      len(source.schema.classes),
      [source.y[client_rows[0]] for client_rows in groups],
    ),
  )
  return preparation.prepared(dataset, [dataset.pretraining.x])


def _fitted(
  name: str,
  source: table.Table,
  parts: Sequence[np.ndarray],
  pretraining_distribution: str,
  max_pretraining_examples: int | None,
  rng: np.random.Generator,
) -> dict[str, Any]:
  """Returns the fields of pre-training, see `load_online_adaptation`.

  Args:
    name: The name of the data in messages.
    source: The data set.
    parts: The indices of the three parts from before deployment.
    pretraining_distribution: The name of the label distribution.
    max_pretraining_examples: The maximum number of examples.
    rng: The random generator.
  """
  pretraining, _, initial = parts
  everything = np.sort(np.concatenate(parts))
  fields: dict[str, Any] = {"num_labelled": len(everything)}
  if pretraining_distribution != AS_IS:
    drawn, distribution = _chosen(
      name,
      source,
      pretraining,
      np.unique(source.y[everything]),
      pretraining_distribution,
      max_pretraining_examples,
      rng,
    )
  else:
    drawn = np.concatenate([pretraining, initial])
    counts = np.bincount(
      source.y[everything], minlength=len(source.schema.classes)
    )
    distribution = counts / counts.sum()
    if max_pretraining_examples is None:
      fields["labelled"] = examples_lib.take(source, everything)
    else:
      partition.check_positive_integer(
        "max_pretraining_examples", max_pretraining_examples
      )
      drawn = rng.permutation(drawn)[:max_pretraining_examples]
  return {
    **fields,
    "pretraining": examples_lib.take(source, np.sort(drawn)),
    "class_distribution": distribution,
  }


def _chosen(
  name: str,
  source: table.Table,
  pretraining: np.ndarray,
  occurring: np.ndarray,
  pretraining_distribution: str,
  max_pretraining_examples: int | None,
  rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws the examples of pre-training, see `load_online_adaptation`.

  Args:
    name: The name of the data in messages.
    source: The data set.
    pretraining: The indices from which they are drawn.
    occurring: The classes that occur.
    pretraining_distribution: The name of their label distribution.
    max_pretraining_examples: Their maximum number.
    rng: The random generator.

  Returns:
    Their indices, and the requested label distribution, [num_classes].
  """
  num_classes = len(source.schema.classes)
  distribution = np.zeros(num_classes)
  distribution[occurring] = class_pools.pretraining_distribution(
    pretraining_distribution, len(occurring)
  )
  pool = class_pools.ClassPool(source.y[pretraining], num_classes)
  size = max_pretraining_examples
  if size is None:
    size = max(1, len(pretraining) // 2)
  partition.check_positive_integer("max_pretraining_examples", size)
  size = min(size, len(pretraining))
  wanted = size * distribution
  rare = np.flatnonzero(2 * pool.counts < wanted)
  if len(rare):
    listed = ", ".join(
      f"{source.schema.classes[label]}: {pool.counts[label]} of"
      f" {wanted[label]:.3g}"
      for label in rare[:_NUM_LISTED]
    )
    examples_lib.warn(
      f"pre-training on {size} examples of {name}: the label distribution"
      f" {pretraining_distribution} cannot be kept, because {len(rare)} of"
      f" {len(occurring)} classes have less than half of the required examples;"
      " they give all of theirs"
      f" ({listed}{', ...' * (len(rare) > _NUM_LISTED)})"
    )
  elif max_pretraining_examples is None:
    most = pool.counts[occurring] / distribution[occurring]
    size = max(1, min(size, int(np.min(most))))
  drawn = pool.draw_without_replacement(distribution, size, rng)
  return pretraining[drawn], distribution


def _cut(
  source: table.Table,
  positions: np.ndarray,
  rng: np.random.Generator,
  sides: np.ndarray | None,
) -> list[np.ndarray]:
  """Splits indices: pre-training, held out, labelled, streams."""
  if source.num_train is None:
    order = rng.permutation(positions)
    num_stream = round(_STREAM_SHARE * len(order))
    sizes = [num_stream, *_sizes(len(order) - num_stream)]
    stream, *parts = partition.cut(order, sizes, source.group, sides)
    return [*parts, stream]
  is_train = positions < source.num_train
  before = rng.permutation(positions[is_train])
  return [*_split_labelled(source, before, sides), positions[~is_train]]


def _split_labelled(
  source: table.Table, order: np.ndarray, sides: np.ndarray | None
) -> list[np.ndarray]:
  """Splits shuffled indices: pre-training, held out, labelled."""
  return partition.cut(order, _sizes(len(order)), source.group, sides)


def _sizes(size: int) -> np.ndarray:
  """Returns the numbers of examples for pre-training, and held out."""
  ends = np.rint(np.cumsum(_PART_SHARES[:2]) * size).astype(int)
  return np.diff(ends, prepend=0)


def _clients_of(
  source: table.Table, positions: np.ndarray
) -> np.ndarray | None:
  """Returns the clients of the examples of a part, in order."""
  return None if source.client is None else source.client[np.sort(positions)]


def initial_examples(
  dataset: OnlineAdaptationDataset, num_examples: int, client_id: int, seed: int
) -> examples_lib.Examples:
  """Draws a client's labelled examples from before deployment.

  If examples belong to clients, they are drawn from the client's own; if
  classes do, from the client's classes.

  Args:
    dataset: The data set.
    num_examples: The number of examples of a client; a client that holds fewer
      gets all of them, see `num_labelled`.
    client_id: The client.
    seed: Seed of the draw.

  Returns:
    Different examples in the label distribution of pre-training, as closely as
    possible. In data with domains, a client that holds none gets none.

  Raises:
    ValueError: If the client holds no labelled examples, without domains.
  """
  held, pool, distribution, available = _labelled(dataset, client_id)
  drawn = pool.draw_without_replacement(
    distribution,
    min(num_examples, available),
    partition.generator("initial examples", [seed, client_id]),
  )
  return examples_lib.take(dataset.initial, held[drawn])


def held_out_examples(
  dataset: OnlineAdaptationDataset, num_examples: int, seed: int
) -> examples_lib.Examples:
  """Draws labelled examples of the server, see `Deployment.held_out`.

  Args:
    dataset: The data set; its part `validation` is used.
    num_examples: The maximum number of examples.
    seed: Seed of the draw.

  Returns:
    Different examples in the label distribution of pre-training, as closely as
    possible.
  """
  pool = class_pools.ClassPool(
    dataset.validation.y, len(dataset.schema.classes)
  )
  drawn = pool.draw_without_replacement(
    dataset.class_distribution,
    min(num_examples, len(dataset.validation.y)),
    partition.generator("held-out examples", seed),
  )
  return examples_lib.take(dataset.validation, drawn)


def num_labelled(dataset: OnlineAdaptationDataset, client_id: int) -> int:
  """Returns the number of examples that `initial_examples` can draw.

  Raises:
    ValueError: If the client holds no labelled examples, without domains.
  """
  return _labelled(dataset, client_id)[-1]


def _labelled(
  dataset: OnlineAdaptationDataset, client_id: int
) -> tuple[np.ndarray, class_pools.ClassPool, np.ndarray, int]:
  """Returns the pool of a client's labelled examples.

  Returns:
    The indices of `initial`, these as a pool, the label distribution, and the
    number of examples of its classes.

  Raises:
    ValueError: If there are none, without domains.
  """
  held = np.arange(len(dataset.initial.y))
  if dataset.initial_client is not None:
    held = np.flatnonzero(dataset.initial_client == client_id)
  pool = class_pools.ClassPool(
    dataset.initial.y[held], len(dataset.schema.classes)
  )
  distribution = dataset.class_distribution
  if dataset.client_classes is not None:
    distribution = np.zeros_like(distribution)
    classes = dataset.client_classes[client_id]
    distribution[classes] = dataset.class_distribution[classes]
    # The client may have none of the classes before deployment.
    distribution /= distribution.sum() or 1.0
  available = int(pool.counts[distribution > 0].sum())
  if not available and dataset.streams is None:
    raise ValueError(
      f"client {dataset.schema.client_name(client_id)} has no labelled example"
      f" of its classes among the {len(dataset.initial.y)} from before"
      " deployment"
    )
  return held, pool, distribution, available


def archive_of(
  dataset: str, data_dir: str | os.PathLike[str] | None = None
) -> Callable[[str, int], examples_lib.Examples]:
  """Returns a reader of the published corrupted images of a data set.

  Args:
    dataset: One whose entry has `corrupted`, such as `cifar10` (CIFAR-10-C).
    data_dir: The folder of all data sets, see `dataset`.

  Returns:
    `(corruption, severity) -> Examples`; results are cached.

  Raises:
    ValueError: If there is no such data set or archive.
  """
  entry = datasets.get(dataset, data_dir=data_dir)
  if entry.corrupted is None:
    known = [
      name
      for name in datasets.names(SCENARIO)
      if datasets.get(name).corrupted is not None
    ]
    raise ValueError(
      f"corrupted images are published for {' and '.join(known)}, not for"
      f" {dataset!r}"
    )

  @functools.cache
  def read(corruption: str, severity: int) -> examples_lib.Examples:
    source = datasets.checked(
      entry.corrupted(corruption, severity, data_dir=data_dir),
      entry,
      f"{dataset} under {corruption} of severity {severity}",
    )
    return examples_lib.Examples(source.x, source.y)

  return read


class Streams:
  """The streams of all clients; every draw is a function of (client, step).

  Attributes:
    omega: The weight of eq. 1 at the time steps 0..T, [T + 1], or [num_clients,
      T + 1] if each client has its own.
    targets: Q_T of each client, [num_clients, num_classes]; 0 for classes of
      which the client cannot draw examples.
    corruption_names: The corruption of each client; empty under label shift.
  """

  def __init__(
    self,
    pool: examples_lib.Examples,
    num_classes: int,
    omega: np.ndarray,
    *,
    num_clients: int,
    samples_per_step: int,
    shift_kind: str = "label",
    dirichlet: float = 0.1,
    archive: Callable[[str, int], examples_lib.Examples] | None = None,
    corruption_set: str = "all",
    severities: str = "zero_to_five",
    seed: int = 0,
    pool_client: np.ndarray | None = None,
    client_classes: Sequence[np.ndarray] | None = None,
  ):
    """Draws the targets and corruptions of the clients.

    Args:
      pool: The pool of the streams.
      num_classes: The number of classes.
      omega: The weight of eq. 1, [T + 1], see `schedules.omega`; or a row of
        this kind for each client.
      num_clients: The number of clients.
      samples_per_step: The number of examples of a client at a time step.
      shift_kind: `label` or `covariate`.
      dirichlet: Concentration of the Dirichlet distribution of Q_T.
      archive: The reader of corrupted images, see `archive_of`. None: they are
        computed from the pool.
      corruption_set: The corruptions of the clients, one of `CORRUPTION_SETS`.
      severities: How omega determines the severity, one of `SEVERITIES`.
      seed: Seed of all draws.
      pool_client: `[N]` integers, the client that holds an example of the pool
        and alone draws it. None: all clients draw from all examples.
      client_classes: The classes that each client may draw, among those that it
        has. None: all.

    Raises:
      ValueError: If a value is not allowed, or a client cannot draw anything.
    """
    arguments.choice("shift_kind", shift_kind, SHIFT_KINDS)
    arguments.choice("corruption_set", corruption_set, CORRUPTION_SETS)
    arguments.choice("severities", severities, SEVERITIES)
    partition.check_positive_integer("num_clients", num_clients)
    partition.check_positive_integer("samples_per_step", samples_per_step)
    examples_lib.check_pool(pool)
    if np.ndim(omega) == 2 and len(omega) != num_clients:
      raise ValueError(
        f"omega must have a row for each of {num_clients} clients, got"
        f" {len(omega)} rows"
      )
    self.omega = omega
    # The indices from which each client draws.
    self._own = None
    if pool_client is not None:
      if np.shape(pool_client) != np.shape(pool.y):
        raise ValueError(
          f"pool_client must have a client for each of {len(pool.y)} examples,"
          f" got the shape {list(np.shape(pool_client))}"
        )
      self._own = partition.by_client(pool_client, num_clients)
    drawable = class_pools.held_classes(
      pool.y, num_classes, pool_client, num_clients
    )
    if client_classes is not None:
      drawable = list(map(np.intersect1d, drawable, client_classes))
    for client, classes in enumerate(drawable):
      if not len(classes):
        raise ValueError(
          f"client {client} cannot draw a stream: none of the"
          f" {len(pool.y)} examples of the pool is its own and of its classes"
        )
    self._start, self.targets = (
      partition.dirichlet_over_classes(drawable, num_classes, alpha, seed)
      for alpha in (np.inf, dirichlet)
    )
    self.corruption_names = ()
    if shift_kind == "covariate":
      # Every corruption occurs before one is repeated.
      names = corruptions.names()
      if corruption_set == "benchmark":
        names = names[:_NUM_BENCHMARK]
      order = partition.generator("corruptions", seed).permutation(names)
      self.corruption_names = tuple(
        str(order[client % len(order)]) for client in range(num_clients)
      )
    self._pool = pool
    self._num_samples = samples_per_step
    self._archive = archive
    self._severities = severities
    self._seed = seed
    self._by_class = functools.cache(
      lambda name, severity, own: class_pools.ClassPool(
        self._examples(name, severity).y[self._positions(own)], num_classes
      )
    )

  @property
  def num_clients(self) -> int:
    """The number of clients."""
    return len(self.targets)

  @property
  def num_timesteps(self) -> int:
    """T, the last time step."""
    return np.shape(self.omega)[-1] - 1

  def _weight(self, client: int, timestep: int) -> float:
    """Returns omega of a client."""
    omega = self.omega[client] if np.ndim(self.omega) == 2 else self.omega
    return omega[timestep]

  def class_distribution(self, client: int, timestep: int) -> np.ndarray:
    """Returns Q_t of a client (eq. 1), [num_classes], used by `batch`."""
    partition.check_position("client", client, 0, self.num_clients - 1)
    partition.check_position("timestep", timestep, 0, self.num_timesteps)
    start = self._start[client]
    if self.corruption_names:
      return start
    weight = self._weight(client, timestep)
    return (1 - weight) * start + weight * self.targets[client]

  def severity(self, timestep: int, client: int = 0) -> int:
    """Returns the severity of a client's corruption, 0 (none) to 5.

    Args:
      timestep: The time step; with `one_to_five`, nothing is corrupted at 0.
      client: The client, which only matters if each has its own omega.
    """
    partition.check_position("timestep", timestep, 0, self.num_timesteps)
    partition.check_position("client", client, 0, self.num_clients - 1)
    if not self.corruption_names:
      return 0
    weight = self._weight(client, timestep)
    most = corruptions.MAX_SEVERITY
    if self._severities == "one_to_five":
      # The state of pre-training comes before the program's first step.
      return int(np.ceil((most - 1) * weight)) + 1 if timestep else 0
    return int(np.floor(most * weight + 0.5))

  def shift(self, client: int, timestep: int) -> float:
    """Returns the shift of a client's distribution since the previous step.

    Args:
      client: The client.
      timestep: The time step, from 1.

    Returns:
      The L1 distance of Q_t and Q_t-1; under covariate shift, the difference of
      the severities over 5.

    Raises:
      ValueError: If there is no previous time step.
    """
    partition.check_positive_integer("timestep", timestep)
    if self.corruption_names:
      now, before = (
        self.severity(step, client) for step in (timestep, timestep - 1)
      )
      steps = now - before
      return abs(steps) / corruptions.MAX_SEVERITY
    change = self.class_distribution(
      client, timestep
    ) - self.class_distribution(client, timestep - 1)
    return float(np.abs(change).sum())

  def batch(self, client: int, timestep: int) -> examples_lib.Examples:
    """Draws a client's examples at a time step.

    Args:
      client: The client.
      timestep: The time step, from 1.

    Returns:
      `samples_per_step` examples; x is read-only. Their classes are for
      evaluation only.

    Raises:
      ValueError: If there is no such client or time step, or an archive lacks a
        class of the pool.
    """
    distribution = self.class_distribution(client, timestep)
    severity = self.severity(timestep, client)
    name = self.corruption_names[client] if severity else ""
    # Computed corruptions change the images of the pool, not their classes.
    part = ("", 0) if self._archive is None else (name, severity)
    owner = None if self._own is None else client
    try:
      drawn = self._by_class(*part, owner).draw(
        distribution,
        self._num_samples,
        partition.generator("stream", [self._seed, client, timestep]),
      )
    except ValueError as error:
      raise ValueError(
        f"images of client {client} under {name} of severity {severity}:"
        f" {error}"
      ) from error
    positions = drawn if owner is None else self._own[owner][drawn]
    examples = self._examples(*part)
    x = examples.x[positions]
    if severity and self._archive is None:
      x = corruptions.corrupt(x, name, severity, positions)
    return examples_lib.Examples(
      examples_lib.read_only(x), examples.y[positions]
    )

  def _positions(self, owner: int | None) -> np.ndarray | slice:
    """Returns the indices of the pool from which a client draws."""
    return slice(None) if owner is None else self._own[owner]

  def _examples(self, name: str, severity: int) -> examples_lib.Examples:
    """Returns a part of the archive; without a severity, the pool."""
    return self._archive(name, severity) if severity else self._pool
