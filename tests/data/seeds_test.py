"""Draws are functions of their seed."""

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.data import partition
from tff_shift.data.datasets import circle
from tff_shift.data.datasets import synthetic_titles
from tff_shift.data.shifts import class_pools
from tff_shift.data.shifts import concepts
from tff_shift.data.shifts import dynamic_personalization
from tff_shift.data.shifts import evolving
from tff_shift.data.shifts import guidance
from tff_shift.data.shifts import online_adaptation
from tff_shift.data.shifts import schedules

LABELS = np.tile(np.arange(4), 25)
DOMAINS = evolving.load_evolving("circle", num_domains=3)


def guided(seed):
  return guidance.load_guidance(
    "digits",
    num_clients=3,
    partition="dirichlet_0.3",
    seed=seed,
    max_examples=100,
  )


def drift(name, seed):
  return concepts.draw(
    name, num_clients=10, num_domains=11, num_classes=10, seed=seed
  ).of_domain


DRAWS = {
  "dirichlet_proportions": lambda seed: partition.dirichlet_proportions(
    5, 3, 1.0, seed
  ),
  "partition_by_class": lambda seed: partition.partition_by_class(
    LABELS, np.full((5, 4), 0.25), seed
  ),
  "dirichlet_over_clients": lambda seed: partition.dirichlet_over_clients(
    LABELS, 4, 0.5, seed
  ),
  "shards": lambda seed: partition.shards(LABELS, 4, 2, seed),
  "split_train_test": lambda seed: partition.split_train_test(
    LABELS, 0.2, [0, seed]
  ),
  "deal_classes": lambda seed: class_pools.deal_classes(41, 5, seed),
  "bernoulli": lambda seed: schedules.omega("bernoulli", 99, seed=(3, seed)),
  "circle": lambda seed: circle.generate(seed, 3, 50).x,
  "synthetic_titles": lambda seed: synthetic_titles.generate(seed, 2, 4).x,
  "groups": lambda seed: drift("groups", seed),
  "staggered": lambda seed: drift("staggered", seed),
  "evolving": lambda seed: [
    domain.x
    for domain in evolving.load_evolving(
      "rotated_digits", num_domains=2, seed=seed
    ).domains
  ],
  "assemble_clients": lambda seed: [
    (client.train.x, client.test.x)
    for client in evolving.assemble_clients(
      DOMAINS, num_clients=4, dirichlet=1.0, seed=seed
    )
  ],
  "guidance": lambda seed: guided(seed)[:2],
  "validation": lambda seed: guidance.held_out_validation(guided(0), seed)[:2],
  "online_adaptation": lambda seed: online_adaptation.load_online_adaptation(
    "digits", seed=seed
  )[1:5],
  "dynamic_personalization": lambda seed: (
    dynamic_personalization.load_dynamic_personalization("digits", seed=seed)[
      1:5
    ]
  ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_seed_decides(name):
  first, same, other = (
    np.array(trees.bits(DRAWS[name](seed)), object) for seed in (0, 0, 1)
  )
  assert np.all(first == same)
  # Each array is drawn.
  assert np.all(first != other)
