# %% [markdown]
# # Online adaptation
#
# A model is deployed. Then the frequency of the classes changes at the
# clients, and no new labels arrive. Each client adapts its model to its
# unlabelled stream. The question is the learning rate: too low, and the model
# does not follow; too high, and it forgets.
#
# Fed-ADE measures the shift at each client and sets its learning rate from it.
# It is compared with no adaptation (`source`) and with two fixed rates
# (`fix_lr`).

# %%
import numpy as np
from tqdm import tqdm

import tff_shift as ts
from tff_shift.data.shifts import online_adaptation as streams
from tff_shift.data.shifts import schedules
from tff_shift.scenarios.online_adaptation import (
  simulation as online_adaptation,
)
from tff_shift.shift import bbse
from tff_shift.simulation import pretraining_hparams

NUM_CLIENTS, TIMESTEPS = 8, 16
LOW, HIGH = 5e-3, 1e-1

# %% [markdown]
# Pre-training on digits whose classes are balanced.

# %%
dataset = ts.load_online_adaptation("digits", seed=0)
model = ts.build_model(
  "mlp",
  input_shape=(28, 28, 1),
  num_classes=10,
  input_dtype="uint8",
  width=8,
)
pretrained = ts.pretrain(
  model,
  dataset.pretraining,
  dataset.validation,
  pretraining_hparams.PretrainingHParams(max_epochs=30),
  seed=0,
)
model = ts.with_pretrained(model, pretrained)

# %% [markdown]
# The streams. The label distribution of each client jumps between two
# distributions (schedule `square`). `omega` is the weight of the second one,
# so a drift is a step at which it changes. Methods see neither labels nor
# `omega`.

# %%
omega = schedules.omega("square", TIMESTEPS)
drift_times = 1 + np.flatnonzero(np.diff(omega))
client_streams = streams.Streams(
  dataset.stream, 10, omega, num_clients=NUM_CLIENTS, samples_per_step=50
)
deployment = online_adaptation.Deployment(
  [
    streams.initial_examples(dataset, 64, client, 0)
    for client in range(NUM_CLIENTS)
  ],
  bbse.confusion_matrix(
    pretrained.validation_logits, pretrained.validation_y
  ).numpy(),
)
print("drifts at time steps", drift_times)


# %%
def adapt(label, name, **hparams):
  algorithm = ts.build_algorithm(name, model, ts.hparams(name, **hparams))
  with tqdm(total=TIMESTEPS, desc=label) as bar:
    step = ts.LambdaCallback(on_step=lambda *told: bar.update())
    return ts.run_online_adaptation(
      algorithm, client_streams, deployment, run_seed=0, callbacks=[step]
    )


with ts.execution.use("auto"):
  results = {
    "no adaptation": adapt("no adaptation", "source"),
    "low rate": adapt("low rate", "fix_lr", learning_rate=LOW),
    "high rate": adapt("high rate", "fix_lr", learning_rate=HIGH),
    "fed_ade": adapt("fed_ade", "fed_ade", eta_min=LOW, eta_max=HIGH),
  }

# %% [markdown]
# Accuracy after each step's adaptation. The dashed lines are the drifts.

# %%
curves = {
  name: [step.after["accuracy"] for step in result.timesteps]
  for name, result in results.items()
}
ts.figures.drift_timeline(curves, drift_times, title="Mean over clients")

# %% [markdown]
# The learning rate that Fed-ADE gives to each client, as a mean over clients.
# It rises at the drifts, which no method was told.

# %%
rates = [step.learning_rates.mean() for step in results["fed_ade"].timesteps]
ts.figures.drift_timeline(
  {"fed_ade": rates}, drift_times, ylabel="Mean learning rate", title="Fed-ADE"
)

# %% [markdown]
# ## Result
#
# Adaptation gains about three points. Fed-ADE is as good as the better fixed
# rate, and nobody had to know which one that is: the higher rate is far worse
# than no adaptation. Fed-ADE was only given both rates as bounds.

# %%
means = {name: result.mean("accuracy") for name, result in results.items()}
for name, value in means.items():
  print(f"{name:14} {value:5.1f} %")
print(
  f"gain of Fed-ADE: {means['fed_ade'] - means['no adaptation']:+.1f} points"
)
