"""A client's training data in a period, with a representation of the period.

Fed-3DA: A Dynamic and Personalized Federated Learning Framework (Wang, Sun, Wo,
Liu; ICASSP 2023), Section 2.3: each period has its examples, D^p, and a vector
r that represents their distribution.
"""

from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_shift.data import client_dataset
from tff_shift.learning import local_training
from tff_shift.models import split_model


class PeriodData(NamedTuple):
  """A client's data in a period: a `ClientDataset` and a representation.

  Functions that take a `ClientDataset` accept this as well. Build
  it with `PeriodData(*client_dataset, representation)`.

  Attributes:
    x: The examples, as in `ClientDataset`.
    y: The classes, [num_examples] int32.
    domain_sizes: A period is one domain: [num_examples].
    num_examples: The number of examples, an int32 scalar.
    seed: The client's seed, [2] int32.
    client_id: The client's id, an int32 scalar.
    representation: r, [representation_size] float32, computed without labels. A
      hypernetwork expects values of order 1.
  """

  x: Any
  y: Any
  domain_sizes: Any
  num_examples: Any
  seed: Any
  client_id: Any
  representation: Any

  @staticmethod
  def fields_of_shapes() -> tuple[str, ...]:
    """As in `ClientDataset`."""
    return client_dataset.ClientDataset.fields_of_shapes()


def data_type(
  model: split_model.SplitModel, representation_size: int
) -> tff.Type:
  """Returns the TFF type of `PeriodData`.

  Args:
    model: The model, whose inputs determine the type of an example.
    representation_size: The length of r.
  """
  representation = tff.TensorType(np.float32, (representation_size,))
  return tff.types.to_type(
    PeriodData(*(*local_training.data_type(model), representation))
  )
