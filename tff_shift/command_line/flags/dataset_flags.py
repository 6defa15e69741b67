"""The flags of the data set: a name, a file of arrays, or a prepared set."""

from typing import Any

from absl import flags

from tff_shift import arguments
from tff_shift.data import dataset
from tff_shift.data import datasets
from tff_shift.data.your_own import own_datasets

FLAGS = flags.FLAGS


def define_flags(scenario: str, default: str) -> None:
  """Defines the flags.

  Args:
    scenario: The binary's name.
    default: The default data set.
  """
  flags.DEFINE_string(
    "dataset",
    default,
    f"One of {datasets.choices(scenario)}. The arrays of a file:"
    f" {', '.join(own_datasets.KEYS)}. After tfds:<name>, :<x>,<y> names the"
    " features of the examples and the labels.",
  )
  flags.DEFINE_string(
    "dataset_sha256",
    None,
    "With --dataset=path/to/data.npz: refuses the file unless this is its"
    " SHA-256. config.json has that of each run, and --resume heeds it.",
  )
  flags.DEFINE_string(
    "data_dir",
    None,
    "Folder of the data sets. Default: TFDS_DATA_DIR, else"
    " ~/tensorflow_datasets.",
  )


def check(scenario: str) -> None:
  """Refuses a data set that is not there or that the scenario cannot use.

  What a file says becomes the flags' values: its checksum, and its number of
  clients where it has them.

  Args:
    scenario: The binary's name.

  Raises:
    ValueError: If a flag or a file is wrong.
    FileNotFoundError: If it is not on the disk.
  """
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
      f"--dataset_sha256={FLAGS.dataset_sha256}: that of --dataset={name} is"
      f" {found or 'not known, for it is no file'}"
    )
  FLAGS.dataset_sha256 = found
  if num_clients is None:
    return
  if not FLAGS["num_clients"].using_default_value and (
    FLAGS.num_clients != num_clients
  ):
    raise ValueError(
      f"--num_clients={FLAGS.num_clients}: --dataset={name} has {num_clients}"
      " clients of its own; leave it out"
    )
  FLAGS.num_clients = num_clients


def entry() -> dataset.DatasetInfo:
  """Returns the entry of the data set, after `check`."""
  return datasets.get(FLAGS.dataset, data_dir=FLAGS.data_dir)


def short_name() -> str:
  """Returns what results call the data set."""
  return own_datasets.short_name(FLAGS.dataset)


def clients_are_given(flag: str) -> bool:
  """Tells whether examples have a client, so that no flag deals them.

  Args:
    flag: The flag that would deal them.

  Returns:
    Whether they have.

  Raises:
    ValueError: If they have and the flag is set all the same.
  """
  if entry().num_clients is None:
    return False
  if not FLAGS[flag].using_default_value:
    raise ValueError(
      f"--{flag}={FLAGS[flag].value} does not apply to"
      f" --dataset={FLAGS.dataset}, whose examples have a client; leave it out"
    )
  return True


def named(values: dict[str, Any]) -> dict[str, Any]:
  """Returns flags as config.json has them.

  A file is the same one wherever it lies.

  Args:
    values: Every flag with its value.

  Returns:
    The values, with the short name of the data set.
  """
  return values | {"dataset": short_name()}
