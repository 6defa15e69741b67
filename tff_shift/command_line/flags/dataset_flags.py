"""Data set: flags that name a data set, a file, a folder or a TFDS data set."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from tff_shift._util import arguments
from tff_shift.command_line import configuration
from tff_shift.data import dataset
from tff_shift.data import datasets
from tff_shift.data import sources
from tff_shift.data import table
from tff_shift.data.sources import image_files
from tff_shift.data.sources import npz
from tff_shift.reporting import summary

GROUP = "data"

FLAGS = flags.FLAGS

# Options of a table or a folder, see `sources`.
_OF_TABLES = (
  *("label", "client", "time", "group", "time_unit"),
  *("image", "features", "drop"),
  *("separator", "decimal", "encoding"),
  *("missing", "categories", "unseen_categories"),
)
_OPTIONS = (*_OF_TABLES, "folder_levels", "domain_order", "image_size")
_COLUMN = "Column of --dataset=path/to/data.csv:"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  """The flags of data sets."""

  dataset: str = configuration.setting(
    "digits",
    lambda kind: (
      f"One of {datasets.choices(kind.scenario)}. A file contains the arrays"
      f" {', '.join(npz.KEYS)}. A folder has images in a folder for"
      " each class, or is one of Dataset.save_to_disk (Hugging Face), with"
      " --label. tfds:<name>:<x>,<y> selects the features of inputs and labels."
    ),
  )
  label: str | None = configuration.setting(
    None, f"{_COLUMN} the class of each example."
  )
  client: str | None = configuration.setting(
    None,
    f"{_COLUMN} the client that holds the example. Default: flags partition the"
    " examples over clients.",
  )
  time: str | None = configuration.setting(
    None,
    f"{_COLUMN} the domain, a number or a date. evolving: the last one is the"
    " target. online_adaptation: the first one is before deployment, the others"
    " are time steps. dynamic_personalization: periods, see --train_periods.",
  )
  group: str | None = configuration.setting(
    None,
    f"{_COLUMN} the group, such as the patient, whose rows stay in one part"
    " where the run splits rows into training and test (or validation). Times"
    " separate rows whatever their group; the run prints how many groups are in"
    " both. Default: rows are independent.",
  )
  time_unit: str | None = configuration.setting(
    None,
    "Calendar unit of the dates of --time: day, week (ISO), month, quarter or"
    " year, of the local time as written. Default: each value is a time.",
  )
  missing: str | None = configuration.setting(
    None,
    "Missing numbers of a table: error, or the mean or median of the training"
    " examples; indicator: the mean, and a feature that is 1 for missing ones."
    " Default: error.",
  )
  categories: str | None = configuration.setting(
    None,
    "Texts among the inputs of a table: error; one_hot, an indicator for each"
    " category; or embedding_index, its number. Default: error.",
  )
  unseen_categories: str | None = configuration.setting(
    None,
    "Categories without a training example: error, or ignore, all indicators"
    " are 0. Default: error.",
  )
  separator: str | None = configuration.setting(
    None, "Character between two values of a CSV file. Default: a comma."
  )
  decimal: str | None = configuration.setting(
    None, "Decimal mark of a CSV file. Default: a point."
  )
  encoding: str | None = configuration.setting(
    None,
    "Encoding of a CSV file, such as latin-1 or utf-16. Default: UTF-8.",
  )
  image: str | None = configuration.setting(
    None,
    f"{_COLUMN} the path of an image file, relative to the table's folder;"
    " other columns are then not used. In a folder of Dataset.save_to_disk: the"
    " image.",
  )
  features: tuple[str, ...] | None = configuration.setting(
    None,
    "Columns of --dataset=path/to/data.csv: the inputs, numbers or vectors."
    " Default: all columns that no other flag names.",
  )
  drop: tuple[str, ...] | None = configuration.setting(
    None,
    "Columns of --dataset=path/to/data.csv that are left out, such as ids.",
  )
  folder_levels: str | None = configuration.setting(
    None,
    "What the folders above the images of --dataset=path/to/folder are, from"
    " the outside to the inside: class, and optionally client and domain, such"
    " as domain,class. Default: class, if images lie one folder deep.",
  )
  domain_order: tuple[str, ...] | None = configuration.setting(
    None,
    "Names of the domains of a folder or of the values of --time, in order; the"
    " last one is the target. Default: numbers by value and names in natural"
    " order; texts of --time have none.",
  )
  image_size: int | None = configuration.setting(
    None,
    "Height and width to which image files are resized (bilinear, anti-aliased,"
    " ignoring the aspect ratio). Default: they must have one size.",
    minimum=1,
    maximum=image_files.MAX_IMAGE_SIZE,
  )
  dataset_sha256: str | None = configuration.setting(
    None,
    "Expected SHA-256 of a user's --dataset: of the file, of all files of a"
    " folder or of images, or of the table of --import or tfds:; others are"
    " refused. config.json records it for each run, and --resume checks it.",
  )
  data_dir: str | None = configuration.setting(
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
  _name_options()
  name = FLAGS.dataset
  if not datasets.is_own(name) and name not in datasets.names(scenario):
    raise ValueError(
      f"--dataset={name}: it must be one of {datasets.choices(scenario)}"
      f"{arguments.did_you_mean(name, datasets.names(scenario))}"
    )
  num_clients = datasets.get(
    name, scenario, data_dir=FLAGS.data_dir
  ).num_clients
  checksum = datasets.checksum(name, FLAGS.data_dir)
  if FLAGS.dataset_sha256 not in (None, checksum):
    raise ValueError(
      f"--dataset_sha256={FLAGS.dataset_sha256}: the SHA-256 of"
      f" --dataset={name} is {checksum or 'unknown: it is no data of yours'}"
    )
  FLAGS.dataset_sha256 = checksum
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


def client_names() -> tuple[str, ...] | None:
  """Returns the names of the clients of `--dataset`; None: their numbers."""
  schema = datasets.schema(FLAGS.dataset, FLAGS.data_dir)
  return None if schema is None else schema.clients


def _name_options() -> None:
  """Makes the options of a table or a folder part of the data set's name.

  Raises:
    ValueError: If an option is set that the data set does not have.
  """
  name, _, given = FLAGS.dataset.partition("?")
  # A folder in the working folder may be named without a slash.
  if (
    not datasets.is_own(name)
    and name not in datasets.names()
    and pathlib.Path(name).is_dir()
  ):
    FLAGS.dataset = f"./{FLAGS.dataset}"
    name = f"./{name}"
  options = {
    option: ",".join(value) if isinstance(value, list) else value
    for option in _OPTIONS
    if (value := FLAGS[option].value) is not None
  }
  allowed = sources.options(name)
  for option in options:
    if option not in allowed:
      raise ValueError(
        f"--{option} belongs to --dataset={_place(option)}, not to"
        f" --dataset={FLAGS.dataset}"
      )
  named = sources.with_options(name, options) if options else name
  # Flags can be checked twice.
  if given and FLAGS.dataset != named:
    raise ValueError(
      f"--dataset={FLAGS.dataset}: columns are named by --label, --client and"
      " --time"
    )
  FLAGS.dataset = named


def _place(option: str) -> str:
  """Returns the data sets that an option belongs to, for a message."""
  if option == "folder_levels":
    return "path/to/folder of images"
  table = "path/to/data.csv or .parquet"
  return (
    table if option in _OF_TABLES else f"path/to/folder of images or {table}"
  )


def is_own() -> bool:
  """Returns whether `--dataset` names a user's data."""
  return datasets.is_own(FLAGS.dataset)


def description(groups: table.Sides | None) -> list[str]:
  """Returns what a run uses of a user's data, in at most seven lines."""
  content = datasets.load(FLAGS.dataset, data_dir=FLAGS.data_dir)
  schema = content.schema
  lines = [f"data: {short_name()}, {len(content.y):,} rows"]
  if schema.features is not None:
    lines.append(_listed("features", schema.features))
  if schema.dropped:
    lines.append(_listed("columns left out", schema.dropped))
  for name, codes, names in (
    ("clients", content.client, schema.clients),
    ("times", content.time, schema.times),
    ("classes", content.y, schema.classes),
  ):
    if codes is None:
      continue
    counts = np.bincount(codes, minlength=len(names or ()))
    keys: Sequence[Any] = names or range(len(counts))
    values = [f"{key} {count}" for key, count in zip(keys, counts, strict=True)]
    if name == "classes":
      fractions = counts / len(codes)
      values = [
        f"{value} ({100 * fraction:.0f} %)"
        for value, fraction in zip(values, fractions, strict=True)
      ]
    lines.append(_listed(name, values))
  if groups is not None:
    train, test = (set(np.concatenate(parts).tolist()) for parts in groups)
    both = len(train & test)
    lines.append(
      f"group {schema.group}: {both} of {len(train | test)} are in training and"
      " in test"
    )
    if both:
      separator = "--time" if schema.times else "num_train"
      lines[-1] += f", which {separator} separates"
  return lines


def _listed(name: str, values: Sequence[str]) -> str:
  return f"{name} ({len(values)}): {summary.shortened(values, ', ')}"


def shown() -> str:
  """Returns the data set as the command line names it."""
  return FLAGS.dataset.partition("?")[0]


def entry() -> dataset.DatasetInfo:
  """Returns the entry of the data set, after `check`."""
  return datasets.get(FLAGS.dataset, data_dir=FLAGS.data_dir)


def short_name() -> str:
  """Returns the name of the data set in results."""
  return sources.short_name(FLAGS.dataset)


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
