"""Runs of the contract's tests, and their results."""

import numpy as np
import tensorflow as tf

from tff_shift.learning import evaluation
from tff_shift.learning import function_types
from tff_shift.simulation.engine import rounds
from tff_shift.testing import forms

RUN_SEED = 5
# The metrics of predictions.
METRICS = (*evaluation.METRICS, "num_examples")


def step(run):
  """Runs a round; streams advance by one step before it."""
  run.data = at_round(run.data, run.round_num)
  return run.step()


def at_round(data, round_num):
  """Returns the data of a round: a stream has a time step."""
  if "timestep" not in data[0]._fields:
    return data
  return [each._replace(timestep=np.int32(round_num + 1)) for each in data]


def start(algorithm, data, run_seed=RUN_SEED, participation=1.0):
  """Starts a run of the clients with these data."""
  return rounds.Rounds(
    algorithm, data, run_seed=run_seed, participation=participation
  )


def snapshot(run):
  """Returns the states of a run as NumPy arrays."""
  return tf.nest.map_structure(
    np.array, (run.server_state, tuple(run.client_states))
  )


def with_info(update_server):
  """Returns `update_server` with the fields of `info` as its arguments.

  They are tensors, as `run_in_graph` needs.
  """

  def update(weights, mean_update, plaintext_sum, round_num, memory=()):
    info = function_types.UpdateInfo(
      round_num, num_clients=forms.NUM_CLIENTS, memory=memory
    )
    return update_server(weights, mean_update, plaintext_sum, info)

  return update
