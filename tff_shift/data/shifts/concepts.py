"""Concepts: labels that mean something else to some clients, or from some time.

A concept is a permutation of the labels: an example of class c has the label
`labels[concept, c]`. Concept 0 is the labels of the data set. Inputs stay as
they are, so that the label given the input changes, and nothing else if all
classes are equally frequent.

A drift says which concept a client has in each domain:

- groups: no drift. Clients are divided at random into groups of equal size, up
  to one client, and group k has concept k in all domains.
- staggered: drift at different times, as in Federated Learning under
  Distributed Concept Drift (Jothimurugesan, Hsieh, Wang, Joshi, Gibbons;
  AISTATS 2023, arXiv:2206.00799). All clients start with concept 0 and drift
  once. In a random order of the n clients, client r = 0, ..., n - 1 drifts into
  source domain 2 + floor(r (S - 2) / n) of the S source domains, which count
  from 0, and then has concept 1 + r mod (number of concepts - 1).

In both the target has the concepts of the last source domain: from their
training data, clients could not know of a drift into it.

Permutations of C classes:

- reversed: c becomes C - 1 - c; two concepts (FedRC: Robust Clustering in
  Federated Learning, Guo, Tang, Lin; ICML 2024, arXiv:2301.12379).
- shifted: c becomes c + k mod C in concept k, as there.
- swapped: concept k exchanges the classes 2 k - 1 and 2 k, as in the first
  paper.

Choices:
  * Concept drift is a case of evolving domains: FedDrift trains on all past
    data of a client, which only this scenario keeps, and the target is the next
    step, as its tests are. `feroma` and the clustered methods also run in
    dynamic personalization.
  * FedDrift's files have matrices of clients and steps. Here a rule takes their
    place: every client drifts once, equally many into each step from the third
    on, as in its staggered setting of two concepts, and the target repeats the
    last step. `assemble_clients(concepts=)` takes any matrix.
"""

from typing import NamedTuple

import numpy as np

from tff_shift._util import arguments
from tff_shift.data import partition

DRIFTS = ("groups", "staggered")
RELABELINGS = ("reversed", "shifted", "swapped")

# Staggered drifts begin here: a client that has one domain behind it cannot
# tell a drift from a model that has just begun to learn.
_FIRST_DRIFT = 2


class Concepts(NamedTuple):
  """The concepts of clients.

  Attributes:
    of_domain: The concept of each client in each domain, [num_clients,
      num_domains] integers.
    labels: The label of each class in each concept, [num_concepts,
      num_classes] int32; rows are permutations.
  """

  of_domain: np.ndarray
  labels: np.ndarray


def relabelings(name: str, num_concepts: int, num_classes: int) -> np.ndarray:
  """Returns the label of each class in each concept.

  Args:
    name: One of `RELABELINGS`.
    num_concepts: The number of concepts, at least 2.
    num_classes: The number of classes.

  Returns:
    [num_concepts, num_classes] int32.

  Raises:
    ValueError: If this relabeling has fewer concepts.
  """
  arguments.choice("relabeling", name, RELABELINGS)
  most = {
    "reversed": 2,
    "shifted": num_classes,
    "swapped": (num_classes + 1) // 2,
  }[name]
  num_concepts = arguments.integer("num_concepts", num_concepts, 2)
  if num_concepts > most:
    raise ValueError(
      f"num_concepts must be at most {most} with relabeling={name} of"
      f" {num_classes} classes, got {num_concepts}"
    )
  labels = np.tile(np.arange(num_classes, dtype=np.int32), (num_concepts, 1))
  for concept in range(1, num_concepts):
    if name == "reversed":
      labels[concept] = labels[0, ::-1]
    elif name == "shifted":
      labels[concept] = np.roll(labels[0], -concept)
    else:
      pair = [2 * concept - 1, 2 * concept]
      labels[concept, pair] = pair[::-1]
  return labels


def draw(
  drift: str,
  relabeling: str = "reversed",
  *,
  num_concepts: int = 2,
  num_clients: int,
  num_domains: int,
  num_classes: int,
  seed: int,
) -> Concepts:
  """Draws the concepts of clients, a pure function of its arguments.

  Args:
    drift: One of `DRIFTS`.
    relabeling: One of `RELABELINGS`.
    num_concepts: The number of concepts, at least 2.
    num_clients: The number of clients.
    num_domains: The number of domains, with the target.
    num_classes: The number of classes.
    seed: Seed of the draw.

  Returns:
    The concepts. Each of them occurs.

  Raises:
    ValueError: If an argument is not allowed, there are fewer clients than
      concepts need, or fewer domains than the drift needs.
  """
  arguments.choice("concept_drift", drift, DRIFTS)
  labels = relabelings(relabeling, num_concepts, num_classes)
  num_clients = arguments.integer("num_clients", num_clients)
  num_sources = arguments.integer("num_domains", num_domains, 2) - 1
  num_changed = len(labels) - (drift == "staggered")
  if num_clients < num_changed:
    raise ValueError(
      f"num_clients must be at least {num_changed} with concept_drift={drift}"
      f" and num_concepts={num_concepts}, got {num_clients}"
    )
  ranks = partition.generator("concepts", seed).permutation(num_clients)
  if drift == "groups":
    of_domain = np.repeat(
      ranks[:, np.newaxis] % num_concepts, num_domains, axis=1
    )
    return Concepts(of_domain, labels)
  if num_sources <= _FIRST_DRIFT:
    raise ValueError(
      f"num_domains must be at least {_FIRST_DRIFT + 2} with concept_drift="
      f"{drift}, whose drifts begin in source domain {_FIRST_DRIFT}, counted"
      f" from 0; got {num_domains}"
    )
  times = _FIRST_DRIFT + ranks * (num_sources - _FIRST_DRIFT) // num_clients
  has_drifted = np.arange(num_domains) >= times[:, np.newaxis]
  new = 1 + ranks % (num_concepts - 1)
  return Concepts(has_drifted * new[:, np.newaxis], labels)


def check(
  concepts: Concepts, num_clients: int, num_domains: int, num_classes: int
) -> None:
  """Refuses concepts that are not of these clients, domains and classes.

  Raises:
    ValueError: If a shape or a value is not allowed; one line.
  """
  of_domain, labels = map(np.asarray, concepts)
  if of_domain.shape[:1] != (num_clients,) or (
    of_domain.ndim != 2 or of_domain.shape[1] < num_domains
  ):
    raise ValueError(
      f"concepts.of_domain must be of {num_clients} clients and at least"
      f" {num_domains} domains, got shape {list(of_domain.shape)}"
    )
  if (
    labels.ndim != 2
    or labels.shape[1] != num_classes
    or np.any(np.sort(labels, axis=1) != np.arange(num_classes))
  ):
    raise ValueError(
      "concepts.labels must have rows that are permutations of"
      f" 0..{num_classes - 1}"
    )
  if not np.all(np.isin(of_domain, np.arange(len(labels)))):
    raise ValueError(
      f"concepts.of_domain must lie in 0..{len(labels) - 1}, the concepts of"
      " concepts.labels"
    )
