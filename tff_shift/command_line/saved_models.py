"""Model export: flags of saved models, and the writing of their files."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from tff_shift.command_line import configuration
from tff_shift.command_line import output_folder
from tff_shift.data import table
from tff_shift.reporting import summary

if TYPE_CHECKING:
  from tff_shift.learning import algorithm as algorithm_lib
  from tff_shift.simulation.engine import rounds

GROUP = "output"

FLAGS = flags.FLAGS

FOLDER = "model"
_NONE, _ALL = "none", "all"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration(configuration.Configuration):
  """The flags of saved models."""

  save_model: bool = configuration.setting(
    True,
    f"Saves the model of each run in {FOLDER}/ in --output_dir, for"
    " `tff_shift.load` and `experiments.predict`.",
  )
  save_clients: tuple[str, ...] = configuration.setting(
    (_NONE,),
    "Clients whose personal models are saved as well: none, all, or their"
    " comma-separated names; if they have no names, their numbers from 0.",
  )


def chosen_clients(
  num_clients: int, client_names: Sequence[str] | None = None
) -> list[int]:
  """Returns the clients of `--save_clients`, in ascending order.

  Args:
    num_clients: The number of clients.
    client_names: Their names. None: their numbers.

  Raises:
    ValueError: If the flag is wrong.
  """
  given = FLAGS.save_clients
  if given == [_ALL]:
    return list(range(num_clients))
  if given == [_NONE]:
    return []
  allowed = f"clients from 0 to {num_clients - 1}"
  if client_names is not None:
    allowed = f"names of clients ({summary.shortened(client_names, ', ')})"
  number_of = {
    str(name): number
    for number, name in enumerate(client_names or range(num_clients))
  }
  if (
    not given
    or not number_of.keys() >= set(given)
    or len(set(given)) != len(given)
  ):
    raise ValueError(
      f"--save_clients={','.join(given)}: it must be none, all, or {allowed},"
      " without duplicates"
    )
  return sorted(number_of[name] for name in given)


def save(
  running: rounds.Rounds,
  run_folder: pathlib.Path,
  curve: Sequence[str],
  schema: table.Schema,
  vocabulary: Sequence[str] | None = None,
) -> None:
  """Writes the model of a run, if `--save_model` is set and it has a model.

  Args:
    running: The finished run.
    run_folder: The output folder.
    curve: The path of the model's folder below `model/`, as a list of names.
    schema: The names of the data.
    vocabulary: The word of each token id. None if inputs are no titles.
  """
  clients = chosen_clients(len(running.data), running.client_names)
  # A flag of online_adaptation.
  with_deployment = bool(getattr(FLAGS, "save_deployment", False))
  if not FLAGS.save_model or not (
    clients or with_deployment or _is_trained(running.algorithm)
  ):
    return
  from tff_shift.serving import export

  folder = run_folder.joinpath(FOLDER, *curve)
  try:
    export.export(
      running.algorithm,
      running.server_state,
      running.states,
      running.data,
      folder,
      clients=clients,
      schema=schema.replace(clients=running.client_names),
      vocabulary=vocabulary,
      with_deployment=with_deployment,
    )
  except ValueError as error:
    # The results of the run are complete without its model.
    output_folder.warn(f"the model was not saved to {folder}: {error}")


def _is_trained(algorithm: algorithm_lib.FederatedAlgorithm) -> bool:
  """Returns whether the server holds trained weights or a model."""
  return algorithm.evaluate_server is not None or bool(
    algorithm.phases and not algorithm.is_local
  )
