# %% [markdown]
# # Dynamic personalization
#
# Each client's data change from time to time, and each client changes on its
# own. A model that fits today does not fit tomorrow, and nobody labels new
# data. With Fed-3DA, a client notices the change itself, sends a short
# description of its new data to the server, and receives new weights, without
# any training.
#
# It is compared with one shared model (`fed_avg`), a hypernetwork that never
# updates a client (`p_fed_hn`), and local training.

# %%
import numpy as np
from tqdm import tqdm

import tff_shift as ts
from tff_shift.data.shifts import dynamic_personalization as periods
from tff_shift.scenarios.dynamic_personalization import drift_detector
from tff_shift.scenarios.dynamic_personalization import (
  simulation as dynamic_personalization,
)
from tff_shift.shift import detection
from tff_shift.simulation import pretraining_hparams

NUM_CLIENTS, PERIOD_SIZE, PERIODS, ROUNDS = 10, 100, 30, 100

# %% [markdown]
# The digits are split into four parts. The server has a small public part: it
# trains the network that describes data, and finds out how far apart two
# periods without a drift are.

# %%
dataset = ts.load_dynamic_personalization("digits", seed=0, public_fraction=0.2)
train, held_out = drift_detector.split_public(dataset.public, 0)
network = drift_detector.extractor_model((28, 28, 1), 10)
trained = ts.pretrain(
  network,
  train,
  held_out,
  pretraining_hparams.PretrainingHParams(max_epochs=30),
  seed=0,
)


def draw(part, distribution, length=1):
  return periods.Periods(
    getattr(dataset, part), 10, distribution,
    num_clients=NUM_CLIENTS, period_size=PERIOD_SIZE, seed=0,
    periods_per_distribution=length,
  )  # fmt: skip


# %%
with ts.execution.use("auto"):
  detector = drift_detector.fit(
    dataset,
    representation="moments",
    representation_size=64,
    distance_features="pixels",
    period_size=PERIOD_SIZE,
    extractor=drift_detector.make_extractor(network, trained.weights),
  )
  # In the stream, 90 % of a client's digits are of one class, for five periods.
  with tqdm(total=PERIODS, desc="distances") as bar:
    stream = dynamic_personalization.measure_stream(
      draw("test", "0.9", 5), PERIODS, detector, lambda period: bar.update()
    )


# %%
def run(name, **hparams):
  model = ts.build_model(
    "mlp", input_shape=(28, 28, 1), num_classes=10, input_dtype="uint8",
    width=16, head_width=16,
  )  # fmt: skip
  hparams = ts.hparams(name, local_epochs=2, batch_size=10, **hparams)
  algorithm = ts.build_algorithm(
    name, model, hparams, num_clients=NUM_CLIENTS,
    num_evaluation_domains=NUM_CLIENTS,
  )  # fmt: skip
  with tqdm(total=ROUNDS, desc=name) as bar:
    step = ts.LambdaCallback(on_step=lambda *told: bar.update())
    return ts.run_dynamic_personalization(
      algorithm,
      draw("train", periods.DISTRIBUTIONS),
      draw("validation", "iid"),
      {"0.9": stream},
      detector.represent,
      num_rounds=ROUNDS,
      run_seed=0,
      threshold=detector.threshold,
      callbacks=[step],
    ).inferences["0.9"]


with ts.execution.use("auto"):
  results = {
    "fed_3da": run(
      "fed_3da",
      learning_rate=0.03,
      meta_learning_rate=0.03,
      representation_size=64,
    ),
    "p_fed_hn": run("p_fed_hn", learning_rate=0.03, meta_learning_rate=0.01),
    "fed_avg": run("fed_avg", learning_rate=0.1),
    "local": run("local", learning_rate=0.03),
  }

# %% [markdown]
# One client. At a dashed line its data change. A triangle is a detection.
# After it, Fed-3DA's client has other weights from the next period on.

# %%
client = int(np.flatnonzero(stream.drifted.any(axis=0))[0])
detections = 1 + np.flatnonzero(results["fed_3da"].detected[:, client])
drift_times = 1 + np.flatnonzero(stream.drifted[:, client])
ts.figures.drift_timeline(
  {name: each.accuracy[:, client] for name, each in results.items()},
  drift_times,
  {"Fed-3DA": detections},
  xlabel="Period",
  title=f"Client {client}",
)

# %% [markdown]
# How good is the detector, over all clients?

# %%
detection.evaluate_clients(
  results["fed_3da"].detected, stream.drifted, horizon=4
)

# %% [markdown]
# All clients. The worst client matters as much as the mean.

# %%
by_client = {name: each.accuracy.mean(axis=0) for name, each in results.items()}
ts.figures.distribution_over_clients(by_client, title="Mean over periods")

# %% [markdown]
# ## Result
#
# New weights keep a client's accuracy up when its data change. Without them,
# the same kind of model (`p_fed_hn`) is several points worse. One good shared
# model (`fed_avg`) is in between: digits are easy, and it loses little when the
# classes change. Training alone is worst, above all for the worst client.

# %%
for name, each in by_client.items():
  print(
    f"{name:10} mean {each.mean():5.1f} %, worst client {each.min():5.1f} %"
  )
gain = by_client["fed_3da"].mean() - by_client["p_fed_hn"].mean()
print(f"Fed-3DA over weights that never change: {gain:+.1f} points")
