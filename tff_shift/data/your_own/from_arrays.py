"""Client data of each scenario from your own arrays.

There is a function for each scenario. Examples are a pair: x `[n, ...]`, uint8
images or floating-point numbers, and y `[n]` integers, the classes from 0. All
examples of a call have the same shape and kind of x. They are validated and
cast here, once: x to uint8 or float32, y to int32. Invalid arrays are refused
in one line that names them. The number of classes is one more than the largest
class that occurs unless it is given, see `examples.num_classes_of`. Arrays that
already have the right type are not copied; copies are read-only. Clients,
domains and periods count from 0, time steps from 1. Messages use a client's
number, or its name if given.

Choices:
  * A masked array is refused, not filled: only the user knows which value
    stands for a missing one. TensorFlow silently drops the masks of TFF's
    `TestClientData`, so the private arrays from which it was built are checked.
  * Prediction refuses the inputs that training refuses, with the same function:
    a value that is not finite would give a meaningless label.
  * A period's drift is a change of the label fractions, not of the
    distribution's name: a client with two labels has the same `0.5` whichever
    is heavy.
  * The drift of given periods is unknown without `drifted`, and so is `omega`
    of given streams: their columns and rates are left out.
"""

import warnings
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tff_shift.data import client_dataset
from tff_shift.data import examples as examples_lib
from tff_shift.data import partition
from tff_shift.data.shifts import evolving as domains_lib
from tff_shift.data.shifts import fixed_batches

Pair = tuple[np.ndarray, np.ndarray]


class Parts(NamedTuple):
  """Two disjoint parts.

  Attributes:
    train: The training examples of each client; for `split`, one `Examples`.
    test: The held-out examples of each client; for `split`, one `Examples`.
  """

  train: Any
  test: Any


class Online(NamedTuple):
  """The data for `online_adaptation.run`, beside a pre-trained model.

  Attributes:
    initial: Each client's labelled examples, for
      `online_adaptation.Deployment`.
    streams: The clients' streams.
  """

  initial: tuple[examples_lib.Examples, ...]
  streams: fixed_batches.Streams


def evolving(
  clients: Sequence[Sequence[Pair]],
  *,
  num_classes: int | None = None,
  test_fraction: float = 0.2,
  seed: int = 0,
  client_names: Sequence[str] | None = None,
  feature_names: Sequence[str] = (),
  domain_names: Sequence[str] | None = None,
  keep_copies_together: bool = False,
) -> tuple[domains_lib.Client, ...]:
  """Makes clients with examples in some domains, for `evolving.run`.

  Args:
    clients: For each client and domain, in the order of time, `(x, y)`, which
      may be empty. The last domain is the target, on which no client trains.
    num_classes: The number of classes. None: inferred.
    test_fraction: Test fraction of a client's examples of a source domain.
    seed: Seed of the split.
    client_names: The names of the clients. None: their numbers.
    feature_names: The names of the columns of x, for a warning of features
      that need scaling. Empty: their numbers.
    domain_names: The names of the domains. None: their numbers.
    keep_copies_together: Whether examples of a client and domain that are equal
      bit for bit are all for training or all for testing. Otherwise a warning
      gives the number of test examples that are also training examples.

  Returns:
    The clients, by id.

  Raises:
    ValueError: If an array is not valid, clients differ in the number of
      domains, or no client has an example of a domain.
  """
  called = _names(client_names, len(clients), "client")
  _check_equal_lengths(clients, "domain", 2, called)
  domain_called = _names(domain_names, len(clients[0]), "domain")
  batches, _ = _checked(
    clients,
    lambda client, m: f"{called(client)}, {domain_called(m)}",
    num_classes,
    feature_names=feature_names,
    allow_empty=True,
  )
  target = len(clients[0]) - 1
  for m in range(target + 1):
    if not any(len(own[m].y) for own in batches):
      raise ValueError(
        f"{domain_called(m)}{', the target' if m == target else ''}: no client"
        " has an example of it"
      )
  made = []
  for client, own in enumerate(batches):
    train, test = [], []
    for m, each in enumerate(own):
      everything = np.arange(len(each.y))
      parts = partition.split_train_test(
        everything,
        test_fraction,
        [seed, m, client],
        examples_lib.copies(each.x) if keep_copies_together else None,
      )
      if m == target:
        parts = everything[:0], everything
      for found, positions in zip((train, test), parts, strict=True):
        found.append(examples_lib.Examples(*(a[positions] for a in each)))
    made.append(
      domains_lib.Client(
        client,
        _join(train),
        _join(test),
        None if client_names is None else client_names[client],
      )
    )
  _warn_of_copies([each.train for each in made], [each.test for each in made])
  return tuple(made)


def evolving_domains(
  domains: Sequence[Pair],
  *,
  names: Sequence[str] | None = None,
  class_names: Sequence[str] | None = None,
  name: str = "own data",
) -> domains_lib.EvolvingDataset:
  """Makes whole domains for `evolving.assemble_clients`.

  Args:
    domains: For each domain, in the order of time, `(x, y)`; the last one is
      the target.
    names: The names of the domains. None: their numbers.
    class_names: The names of the classes. None: their numbers, as many as are
      inferred.
    name: The name of the data set.

  Returns:
    The domains.

  Raises:
    ValueError: If an array is not valid, or there are fewer than 2 domains.
  """
  if len(domains) < 2:
    raise ValueError(
      "there must be at least 2 domains (a source and a target), got"
      f" {len(domains)}"
    )
  if names is None:
    names = [str(m) for m in range(len(domains))]
  if len(names) != len(domains):
    raise ValueError(
      f"names: there must be {len(domains)}, one for each domain, got"
      f" {len(names)}"
    )
  examples_lib.check_names(names, "names", lambda m: f"domain {m}")
  examples_lib.check_names(
    () if class_names is None else class_names,
    "class_names",
    lambda number: f"class {number}",
  )
  (batches,), num_classes = _checked(
    [domains],
    lambda _, m: f"domain {m}",
    None if class_names is None else len(class_names),
  )
  return domains_lib.EvolvingDataset(
    name,
    tuple(
      domains_lib.Domain(*each, called)
      for each, called in zip(batches, names, strict=True)
    ),
    tuple(map(str, range(num_classes)) if class_names is None else class_names),
  )


def guidance(
  train: Sequence[Pair],
  test: Sequence[Pair] | None = None,
  *,
  num_classes: int | None = None,
  test_fraction: float = 0.3,
  seed: int = 0,
  client_names: Sequence[str] | None = None,
  feature_names: Sequence[str] = (),
  keep_copies_together: bool = False,
) -> Parts:
  """Makes training and test examples for `guidance.run`.

  Args:
    train: For each client `(x, y)`.
    test: For each client `(x, y)`, the queries. None: a part of `train`.
    num_classes: The number of classes. None: inferred.
    test_fraction: Without `test`, the test fraction of a client's examples.
    seed: Without `test`, seed of the split.
    client_names: The names of the clients. None: their numbers.
    feature_names: The names of the columns of x, for a warning of features
      that need scaling. Empty: their numbers.
    keep_copies_together: Whether copies of an example stay in one part, see
      `evolving`.

  Returns:
    The examples of each client.

  Raises:
    ValueError: If an array is not valid, clients are missing, or one has too
      few examples for both parts.
  """
  called = _names(client_names, len(train), "client")
  if test is not None:
    if len(train) != len(test):
      raise ValueError(
        f"test: there must be {len(train)} clients, as in train, got"
        f" {len(test)}"
      )
    both, _ = _checked(
      [train, test],
      lambda use, client: f"{called(client)}, {_USES[use]}",
      num_classes,
      feature_names=feature_names,
    )
    made = Parts(*map(tuple, both))
  else:
    (batches,), _ = _checked(
      [train],
      lambda _, client: called(client),
      num_classes,
      feature_names=feature_names,
    )
    made = Parts(
      *zip(
        *(
          _split(
            each,
            test_fraction,
            [seed, client],
            called(client),
            keep_copies_together,
          )
          for client, each in enumerate(batches)
        ),
        strict=True,
      )
    )
  _warn_of_copies(*made)
  return made


def split(
  x: np.ndarray,
  y: np.ndarray,
  *,
  num_classes: int | None = None,
  test_fraction: float = 0.2,
  seed: int = 0,
  keep_copies_together: bool = False,
) -> Parts:
  """Splits labelled examples, for example for `pretraining.pretrain`.

  Args:
    x: The examples, `[n, ...]`.
    y: Their classes, `[n]` integers.
    num_classes: The number of classes. None: inferred.
    test_fraction: Fraction of the held-out examples.
    seed: Seed of the split.
    keep_copies_together: Whether copies of an example stay in one part, see
      `evolving`.

  Returns:
    The training examples and the held-out examples.

  Raises:
    ValueError: If an array is not valid, or there are too few examples.
  """
  what = "the examples"
  ((pair,),), _ = _checked([[(x, y)]], lambda *_: what, num_classes)
  made = _split(pair, test_fraction, seed, what, keep_copies_together)
  _warn_of_copies([made.train], [made.test])
  return made


def online_adaptation(
  initial: Sequence[Pair],
  stream: Sequence[Sequence[Pair]],
  *,
  omega: npt.ArrayLike | None = None,
  num_classes: int | None = None,
  client_names: Sequence[str] | None = None,
  feature_names: Sequence[str] = (),
) -> Online:
  """Makes labelled examples and streams, for `online_adaptation.run`.

  Args:
    initial: For each client `(x, y)`, labelled from before deployment. A client
      that joins later has none; `online_adaptation.Deployment` then needs
      labelled examples of the server (`held_out`).
    stream: For each client and time step `(x, y)`; y is for evaluation only and
      hidden from adaptation. A client without examples is absent at this time
      step.
    omega: A number for each of the time steps 0..T, such as the extent of the
      shift. None: not known.
    num_classes: The number of classes. None: inferred.
    client_names: The names of the clients. None: their numbers.
    feature_names: The names of the columns of x, for a warning of features
      that need scaling. Empty: their numbers.

  Returns:
    The validated examples and streams.

  Raises:
    ValueError: If an array is not valid, clients differ in their time steps, or
      no client has examples at one of them.
  """
  if len(initial) != len(stream):
    raise ValueError(
      f"initial: there must be {len(stream)} clients, as in stream, got"
      f" {len(initial)}"
    )
  called = _names(client_names, len(stream), "client")
  _check_equal_lengths(stream, "time step", 1, called)
  joined = [
    [first, *others] for first, others in zip(initial, stream, strict=True)
  ]
  batches, num_classes = _checked(
    joined,
    lambda client, number: f"{called(client)}, {_at_timestep(number)}",
    num_classes,
    feature_names=feature_names,
    allow_empty=True,
  )
  _check_present(batches, _at_timestep)
  extent = None
  if omega is not None:
    extent = examples_lib.checked_array(
      np.asarray(examples_lib.as_array(omega, "omega"), np.float64),
      "omega",
      shape=(len(stream[0]) + 1,),
      dtype=np.float64,
    )
  held = tuple(own[0] for own in batches)
  return Online(
    held,
    fixed_batches.Streams(
      [own[1:] for own in batches],
      extent,
      num_classes,
      [each.y for each in held],
    ),
  )


def dynamic_personalization(
  clients: Sequence[Sequence[Pair]],
  *,
  drifted: npt.ArrayLike | None = None,
  num_classes: int | None = None,
  client_names: Sequence[str] | None = None,
  feature_names: Sequence[str] = (),
) -> fixed_batches.Periods:
  """Makes periods of the clients, for training, validation or a stream.

  A round of training uses one period: with fewer periods than rounds, repeat
  them (`[own * 10 for own in clients]` copies no array).

  Args:
    clients: For each client and period `(x, y)`. A client without examples is
      absent in this period.
    drifted: For each client and period, whether its distribution differs from
      the previous period; ignored for period 0. It is used to evaluate drift
      detection, and clients do not see it. None: not known.
    num_classes: The number of classes. None: inferred.
    client_names: The names of the clients. None: their numbers.
    feature_names: The names of the columns of x, for a warning of features
      that need scaling. Empty: their numbers.

  Returns:
    The periods.

  Raises:
    ValueError: If an array is not valid, clients differ in their periods, or no
      client has examples in one of them.
  """
  called = _names(client_names, len(clients), "client")
  _check_equal_lengths(clients, "period", 1, called)
  batches, num_classes = _checked(
    clients,
    lambda client, period: f"{called(client)}, period {period}",
    num_classes,
    feature_names=feature_names,
    allow_empty=True,
  )
  _check_present(batches, lambda period: f"period {period}")
  has_drifted = None
  if drifted is not None:
    shape = len(clients), len(clients[0])
    has_drifted = examples_lib.as_array(drifted, "drifted")
    if has_drifted.shape != shape or has_drifted.dtype != bool:
      raise ValueError(
        f"drifted: {list(shape)} bools wanted, one for each client and"
        f" period, got {has_drifted.dtype} {list(has_drifted.shape)}"
      )
  return fixed_batches.Periods(batches, has_drifted, num_classes)


_USES = "train", "test"


def _at_timestep(number: int) -> str:
  return f"time step {number}" if number else "initial"


def _names(
  names: Sequence[str] | None, number: int, what: str
) -> Callable[[int], str]:
  """Returns the names of clients or domains in messages, by their numbers.

  Args:
    names: Their names. None: their numbers.
    number: The number of clients or domains.
    what: "client", or "domain".

  Returns:
    `(number) -> text`.

  Raises:
    ValueError: If the number of names differs.
  """
  if names is None:
    return lambda place: f"{what} {place}"
  if len(names) != number:
    raise ValueError(
      f"{what}_names: there must be {number}, one for each {what}, got"
      f" {len(names)}"
    )
  examples_lib.check_names(
    names, f"{what}_names", lambda place: f"{what} {place}"
  )
  return lambda place: f"{what} {names[place]!r}"


def _warn_of_copies(train: Sequence[Any], test: Sequence[Any]) -> None:
  """Warns of test examples that are also training examples."""
  number = examples_lib.num_trained_on(
    (each.x for each in train), (each.x for each in test)
  )
  if number:
    warnings.warn(
      f"{number} of {sum(len(each.y) for each in test)} test examples are"
      " also training examples, bit for bit",
      stacklevel=3,
    )


def _checked(
  groups: Sequence[Sequence[Pair]],
  where: Callable[[int, int], str],
  num_classes: int | None,
  *,
  allow_empty: bool = False,
  feature_names: Sequence[str] = (),
) -> tuple[list[list[examples_lib.Examples]], int]:
  """Validates and casts pairs of x and y; warns of features without a scale.

  Args:
    groups: The pairs, in two levels.
    where: Maps a pair's two positions to its name in messages.
    num_classes: The number of classes. None: inferred.
    allow_empty: Whether a pair may have no examples.
    feature_names: The names of the columns of x. Empty: their numbers.

  Returns:
    The examples, and the number of classes.

  Raises:
    ValueError: If a pair is not valid; one line that names it.
  """
  # By the identity of the arrays: repeated pairs are processed once.
  pairs, names, places = {}, {}, []
  for i, group in enumerate(groups):
    places.append([])
    for j, pair in enumerate(group):
      what = where(i, j)
      try:
        x, y = pair
      except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: arrays (x, y) are wanted") from error
      key = id(x), id(y)
      if key not in pairs:
        arrays = (
          examples_lib.as_array(each, f"{name} of {what}")
          for name, each in (("x", x), ("y", y))
        )
        # The originals are kept alive, so that their ids stay unique.
        pairs[key] = (*arrays, x, y)
        names[key] = what
      places[-1].append(key)
  if not pairs:
    raise ValueError("there must be at least one client")
  if num_classes is None:
    num_classes = examples_lib.num_classes_of(
      [each[1] for each in pairs.values()],
      [f"y of {what}" for what in names.values()],
    )
  partition.check_positive_integer("num_classes", num_classes)
  first_key = next(iter(pairs))
  first, first_name = pairs[first_key][0], names[first_key]
  is_image = first.dtype.kind in "iu"
  found = {}
  for key, (x, y, *given) in pairs.items():
    what = names[key]
    if x.ndim < 1 or (x.dtype.kind in "iu") != is_image:
      raise ValueError(
        f"x of {what}: {'integers' if is_image else 'floating-point numbers'}"
        f" [n, ...] wanted as in {first_name}, got {x.dtype} {list(x.shape)};"
        " images go from 0 to 255, as uint8"
      )
    cast = examples_lib.checked(
      x,
      y,
      what,
      shape=first.shape[1:],
      dtype=examples_lib.input_type(is_image),
      num_classes=num_classes,
      allow_empty=allow_empty,
    )
    found[key] = examples_lib.Examples(
      *(
        # The data below a mask are the caller's own memory.
        array
        if isinstance(original, np.ma.MaskedArray) or array is original
        else examples_lib.read_only(array)
        for array, original in zip(cast, given, strict=True)
      )
    )
  examples_lib.check_precision((x for x, *_ in pairs.values()), "x")
  examples_lib.warn_of_unscaled(
    [each.x for each in found.values()], feature_names
  )
  return [[found[key] for key in group] for group in places], num_classes


def _check_equal_lengths(
  groups: Sequence[Sequence[Pair]],
  what: str,
  at_least: int,
  called: Callable[[int], str],
) -> None:
  """Refuses clients that differ in the number of their domains or times."""
  if not len(groups):
    raise ValueError("there must be at least one client")
  for client, own in enumerate(groups):
    if len(own) < at_least:
      raise ValueError(
        f"{called(client)}: there must be at least {at_least} {what}s, got"
        f" {len(own)}"
      )
    if len(own) != len(groups[0]):
      raise ValueError(
        f"{called(client)}: there must be {len(groups[0])} {what}s, as of"
        f" {called(0)}, got {len(own)}"
      )


def _check_present(
  batches: Sequence[Sequence[examples_lib.Examples]],
  called: Callable[[int], str],
) -> None:
  """Refuses times at which no client has examples."""
  for number, at_once in enumerate(zip(*batches, strict=True)):
    if not any(len(each.y) for each in at_once):
      raise ValueError(f"{called(number)}: no client has an example of it")


def _split(
  pair: examples_lib.Examples,
  test_fraction: float,
  seed: partition.Seed,
  what: str,
  keep_copies_together: bool,
) -> Parts:
  """Splits examples; refuses empty parts."""
  copies = examples_lib.copies(pair.x) if keep_copies_together else None
  parts = partition.split_train_test(
    np.arange(len(pair.y)), test_fraction, seed, copies
  )
  if not len(parts[1]):
    of_one = keep_copies_together and len(pair.y) > 1 and not copies.any()
    raise ValueError(
      f"{what}: test_fraction {test_fraction:g} of {len(pair.y)} examples"
      f"{', all copies of one,' if of_one else ''} leaves none to test"
    )
  return Parts(*(_take(pair, positions) for positions in parts))


def _take(
  pair: examples_lib.Examples, positions: np.ndarray
) -> examples_lib.Examples:
  """Copies examples, read-only."""
  x, y = examples_lib.take(pair, positions)
  return examples_lib.Examples(x, examples_lib.read_only(y))


def _join(
  parts: Sequence[examples_lib.Examples],
) -> client_dataset.ClientDataset:
  """Concatenates a client's examples, sorted by domain."""
  x, y = (
    examples_lib.read_only(np.concatenate(arrays))
    for arrays in zip(*parts, strict=True)
  )
  return client_dataset.ClientDataset.from_arrays(
    x, y, [len(each.y) for each in parts]
  )
