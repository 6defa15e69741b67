"""Continual tasks: domains that are learned one after the other.

Each domain has a part of the rounds. During its rounds a client trains only on
its examples of this domain.

Choices:
  * The tasks of CFL and CFeD are the source domains, in order, each for an
    equal part of the rounds, with as many gradient steps per round as in FedAvg
    (`task_rounds`).
"""

from typing import Any

import tensorflow as tf

from tff_shift.data import client_dataset
from tff_shift.learning import hyperparameters
from tff_shift.learning import local_training


def task_rounds_hparam() -> Any:
  """Declares the hyper-parameter `task_rounds`."""
  return hyperparameters.hparam(
    0,
    "Number of rounds over which the source domains are learned one after the"
    " other, in equal parts; later rounds train on the last one. 0: one round"
    " per domain.",
    minimum=0,
  )


def current_domain(task_rounds: int, round_num, num_domains) -> tf.Tensor:
  """Returns the domain m of a round.

  Args:
    task_rounds: The number of rounds R, see `task_rounds_hparam`.
    round_num: The round r from 0, an int32 scalar.
    num_domains: The number of source domains M, an int32 scalar.

  Returns:
    The m with r in [m R / M, (m + 1) R / M), an int32 scalar; M - 1 from round
    R on.
  """
  domain = round_num * num_domains // (task_rounds or num_domains)
  return tf.minimum(domain, num_domains - 1)


def of_domain(
  data: client_dataset.ClientDataset, domain
) -> client_dataset.ClientDataset:
  """Returns a client's data of one domain, an int32 scalar."""
  end = tf.cumsum(data.domain_sizes)[domain]
  size = data.domain_sizes[domain]
  return data._replace(
    x=data.x[end - size : end],
    y=data.y[end - size : end],
    domain_sizes=size[tf.newaxis],
    num_examples=size,
  )


def num_steps(
  hparams: hyperparameters.LocalWorkHParams,
  data: client_dataset.ClientDataset,
  current: client_dataset.ClientDataset,
  round_num,
) -> tf.Tensor:
  """Returns the number of gradient steps of a client on its current domain.

  Args:
    hparams: `local_steps`, `local_epochs` and `straggler_ratio` are used.
    data: All of the client's data.
    current: The data of the current domain.
    round_num: The round, an int32 scalar.

  Returns:
    An int32 scalar; 0 without examples of the current domain. If all domains
    have equally many rounds, the total over all rounds equals FedAvg's.
  """
  steps = local_training.num_local_steps(hparams, data, round_num)
  has_examples = tf.minimum(tf.size(current.y), 1)
  return steps * tf.size(data.domain_sizes) * has_examples
