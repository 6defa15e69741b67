"""Data set: flags that name a data set, a file of arrays or a TFDS data set."""

from typing import Any

from absl import flags

from tff_shift import arguments
from tff_shift.data import dataset
from tff_shift.data import datasets
from tff_shift.data.your_own import own_datasets

FLAGS = flags.FLAGS

# The columns of a table by role.
_COLUMNS = {
  "label": "the class of each example.",
  "client": "the client that holds the example. Default: flags partition the"
  " examples over clients.",
  "time": "the domain, a number or a date. evolving: the last one is the"
  " target. online_adaptation: the first one is before deployment, the others"
  " are time steps. dynamic_personalization: periods, see --train_periods.",
}


def define_flags(scenario: str, default: str) -> None:
  """Defines the flags.

  Args:
    scenario: The binary's name.
    default: The default data set.
  """
  flags.DEFINE_string(
    "dataset",
    default,
    f"One of {datasets.choices(scenario)}. A file contains the arrays"
    f" {', '.join(own_datasets.KEYS)}. tfds:<name>:<x>,<y> selects the features"
    " of inputs and labels.",
  )
  for role, text in _COLUMNS.items():
    flags.DEFINE_string(
      role, None, f"Column of --dataset=path/to/data.csv: {text}"
    )
  flags.DEFINE_string(
    "dataset_sha256",
    None,
    "Expected SHA-256 of --dataset=path/to/data.npz; another file is refused."
    " config.json records it for each run, and --resume checks it.",
  )
  flags.DEFINE_string(
    "data_dir",
    None,
    "Folder of the data sets. Default: TFDS_DATA_DIR, else"
    " ~/tensorflow_datasets.",
  )


def check(scenario: str) -> None:
  """Checks that the data set exists and that the scenario supports it.

  Sets flags from the file: its checksum, and its number of clients if it has
  clients.

  Raises:
    ValueError: If a flag or a file is wrong.
    FileNotFoundError: If the data set is not on the disk.
  """
  _name_columns()
  name = FLAGS.dataset
  if not own_datasets.is_own(name) and name not in datasets.names(scenario):
    raise ValueError(
      f"--dataset={name}: it must be one of {datasets.choices(scenario)}"
      f"{arguments.did_you_mean(name, datasets.names(scenario))}"
    )
  num_clients = datasets.get(
    name, scenario, data_dir=FLAGS.data_dir
  ).num_clients
  found = own_datasets.checksum(name)
  if FLAGS.dataset_sha256 not in (None, found):
    raise ValueError(
      f"--dataset_sha256={FLAGS.dataset_sha256}: the SHA-256 of"
      f" --dataset={name} is {found or 'unknown, because it is not a file'}"
    )
  FLAGS.dataset_sha256 = found
  if num_clients is None:
    return
  if not FLAGS["num_clients"].using_default_value and (
    FLAGS.num_clients != num_clients
  ):
    raise ValueError(
      f"--num_clients={FLAGS.num_clients}: --dataset={shown()} has"
      f" {num_clients} clients of its own; leave it out"
    )
  FLAGS.num_clients = num_clients


def _name_columns() -> None:
  """Makes the columns of a table part of the name of its data set.

  Raises:
    ValueError: If a column is named without a table.
  """
  columns = {
    role: FLAGS[role].value
    for role in _COLUMNS
    if FLAGS[role].value is not None
  }
  if own_datasets.is_table(FLAGS.dataset):
    file = FLAGS.dataset.partition("?")[0]
    # Flags can be checked twice.
    if FLAGS.dataset not in (file, own_datasets.table_name(file, columns)):
      raise ValueError(
        f"--dataset={FLAGS.dataset}: columns are named by --label, --client and"
        " --time"
      )
    FLAGS.dataset = own_datasets.table_name(file, columns)
  elif columns:
    raise ValueError(
      f"--{next(iter(columns))} belongs to --dataset=path/to/data.csv or"
      f" .parquet, not to --dataset={FLAGS.dataset}"
    )


def shown() -> str:
  """Returns the data set as the command line names it."""
  return FLAGS.dataset.partition("?")[0]


def entry() -> dataset.DatasetInfo:
  """Returns the entry of the data set, after `check`."""
  return datasets.get(FLAGS.dataset, data_dir=FLAGS.data_dir)


def short_name() -> str:
  """Returns the name of the data set in results."""
  return own_datasets.short_name(FLAGS.dataset)


def clients_are_given(flag: str) -> bool:
  """Returns whether the data set assigns its examples to clients.

  Args:
    flag: The flag that partitions other data sets.

  Raises:
    ValueError: If the data set assigns clients and the flag is set.
  """
  if entry().num_clients is None:
    return False
  if not FLAGS[flag].using_default_value:
    raise ValueError(
      f"--{flag}={FLAGS[flag].value} does not apply to"
      f" --dataset={shown()}, which assigns examples to clients; leave it"
      " out"
    )
  return True


def named(values: dict[str, Any]) -> dict[str, Any]:
  """Returns flags as config.json stores them.

  The data set gets its short name, so that a file may move.
  """
  return values | {"dataset": short_name()}
