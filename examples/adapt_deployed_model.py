"""Adapts a deployed model to a drift, without labels.

    python -m examples.adapt_deployed_model

A model for digits is pre-trained and deployed to four clients, whose label
distributions then shift. Fed-ADE measures the shift and sets each client's
learning rate accordingly.
"""

import pathlib
import tempfile

import numpy as np

import tff_shift
from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.data.shifts import online_adaptation as online_adaptation_data
from tff_shift.data.shifts import schedules
from tff_shift.scenarios.online_adaptation import (
  simulation as online_adaptation,
)
from tff_shift.serving import export
from tff_shift.shift import bbse
from tff_shift.simulation import pretraining
from tff_shift.simulation import pretraining_hparams
from tff_shift.simulation.engine import callbacks

NUM_CLIENTS, TIMESTEPS = 4, 8


def main() -> None:
  """Pre-trains, deploys and adapts; prints each time step; exports a model."""
  dataset = online_adaptation_data.load_online_adaptation("digits")
  model = models.build(
    "mlp", input_shape=(28, 28, 1), num_classes=10, input_dtype=np.uint8
  )
  pretrained = pretraining.pretrain(
    model,
    dataset.pretraining,
    dataset.validation,
    pretraining_hparams.PretrainingHParams(max_epochs=5),
    seed=0,
  )
  fed_ade = algorithms.get("fed_ade")
  algorithm = algorithms.build(
    fed_ade,
    pretraining.with_pretrained(model, pretrained),
    fed_ade.HParams(eta_min=5e-3, eta_max=1e-1),
  )
  print(algorithm.phases[0].type_signature)  # The stream has no labels.
  client_streams = online_adaptation_data.Streams(
    dataset.stream,
    10,
    schedules.omega("square", TIMESTEPS),
    num_clients=NUM_CLIENTS,
    samples_per_step=50,
  )
  deployment = online_adaptation.Deployment(
    [
      online_adaptation_data.initial_examples(dataset, 64, client, 0)
      for client in range(NUM_CLIENTS)
    ],
    bbse.confusion_matrix(
      pretrained.validation_logits, pretrained.validation_y
    ).numpy(),
  )

  last_client = NUM_CLIENTS - 1

  def show(timestep, loss, step):
    del timestep, loss
    print(
      f"step {step.timestep}: {step.before['accuracy']:.1f} % before,"
      f" {step.after['accuracy']:.1f} % after, rates"
      f" {step.learning_rates.min():.3f} to {step.learning_rates.max():.3f}"
    )

  with tempfile.TemporaryDirectory() as folder:

    def save_model(running):
      export.export(
        algorithm,
        running.server_state,
        running.client_states,
        running.data,
        pathlib.Path(folder, "model"),
        clients=[last_client],
      )

    with execution.use("auto"):
      online_adaptation.run(
        algorithm,
        client_streams,
        deployment,
        run_seed=0,
        callbacks=[callbacks.LambdaCallback(on_step=show, on_end=save_model)],
      )
    last = client_streams.batch(last_client, TIMESTEPS)
    logits = tff_shift.load(pathlib.Path(folder, "model")).predict_as(
      last_client, last.x
    )
  accuracy = (logits.numpy().argmax(axis=1) == last.y).mean()
  print(
    f"client {last_client}'s own model, loaded: accuracy {accuracy:.1%} at the"
    " last time step"
  )


if __name__ == "__main__":
  main()
