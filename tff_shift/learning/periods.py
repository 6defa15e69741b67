"""What a client trains on in a period, with what describes the period.

Fed-3DA: A Dynamic and Personalized Federated Learning Framework (Wang, Sun, Wo,
Liu; ICASSP 2023), Section 2.3: beside the examples of a period, D^p, stands a
vector r that represents their distribution.
"""

from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow_federated as tff

from tff_shift.learning import local_training
from tff_shift.models import split_model


class PeriodData(NamedTuple):
  """A client's data in a period: a `ClientData` and a representation.

  What takes a `local_training.ClientData` takes this as well.
  `PeriodData(*client_data, representation)` makes one.

  Attributes:
    x: See `local_training.ClientData`, as for all but the last field.
    y: The classes.
    domain_sizes: A period is one domain: [num_examples].
    seed: The client's seed.
    client_id: The client's number.
    representation: r, [representation_size] float32, computed without classes.
      A hypernetwork expects numbers of order 1.
  """

  x: Any
  y: Any
  domain_sizes: Any
  seed: Any
  client_id: Any
  representation: Any


def data_type(
  model: split_model.SplitModel, representation_size: int
) -> tff.Type:
  """Returns the TFF type of `PeriodData`.

  Args:
    model: The model, whose inputs fix the type of an example.
    representation_size: The length of r.

  Returns:
    The type.
  """
  return tff.types.to_type(
    PeriodData(
      *local_training.data_type(model),
      representation=tff.TensorType(np.float32, (representation_size,)),
    )
  )
