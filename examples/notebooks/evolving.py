# %% [markdown]
# # Evolving domains
#
# Data change from year to year. A model is trained on past domains and has to
# work on the next one, which has no labels yet. Here handwritten digits rotate
# by 20 degrees from domain to domain. Five clients hold them.
#
# Three methods are compared:
#
# - `local`: each client trains alone;
# - `fed_avg`: federated averaging, which ignores the order of the domains;
# - `fed_evolve`: FedEvolve, which learns how one domain follows from another.

# %%
import numpy as np
from tqdm import tqdm

import tff_shift as ts

NUM_CLIENTS, ROUNDS, SEEDS = 5, 20, (0, 1)
METHODS = ("local", "fed_avg", "fed_evolve")

# %% [markdown]
# The last domain is the target. No client trains on it.

# %%
dataset = ts.load_evolving(
  "rotated_digits", num_domains=7, angle_step=20.0, seed=0
)
print([domain.name for domain in dataset.domains])
model = ts.build_model(
  "mlp", input_shape=(28, 28, 1), num_classes=10, input_dtype="uint8"
)

# %% [markdown]
# All methods have the same optimizer, learning rate and number of rounds.
# `step` moves the progress bar.


# %%
def train(name, seed):
  clients = ts.assemble_clients(dataset, num_clients=NUM_CLIENTS, seed=seed)
  own = {"distance": "squared_l2"} if name == "fed_evolve" else {}
  hparams = ts.hparams(
    name,
    optimizer="adam",
    learning_rate=1e-3,
    local_steps=5,
    batch_size=32,
    **own,
  )
  algorithm = ts.build_algorithm(
    name,
    model,
    hparams,
    num_evaluation_domains=len(dataset.domains),
    metrics=["confusion_matrix"],
  )
  with tqdm(total=ROUNDS, desc=f"{name}, seed {seed}") as bar:
    step = ts.LambdaCallback(on_step=lambda *told: bar.update())
    return ts.run_evolving(
      algorithm, clients, num_rounds=ROUNDS, run_seed=seed, callbacks=[step],
      evaluate_every=5,
    )  # fmt: skip


with ts.execution.use("auto"):
  results = {name: [train(name, seed) for seed in SEEDS] for name in METHODS}


# %% [markdown]
# FedEvolve and FedAvg have a server model; local training has only the
# clients' models. We compare the best model of each method on the target. For
# FedEvolve this is the server model: clients have few digits each, from which
# they compute the prototypes of their own predictions.


# %%
def accuracy(result):
  return np.mean(
    [
      (each.server or each.client)["accuracy"]
      for each in result.evaluations
      if each.round_num >= 10
    ]
  )


table = {
  name: [accuracy(result) for result in results[name]] for name in METHODS
}
for name, values in table.items():
  print(f"{name:12}", *(f"{value:6.1f} %" for value in values))

# %% [markdown]
# The figure shows the accuracy on each domain, of the clients' models. The
# domains before the last one were seen in training. Accuracy falls on the
# target, the last point, for all methods. That fall is the distribution shift.

# %%
per_domain = {
  name: [result.final.client_per_domain["accuracy"] for result in results[name]]
  for name in METHODS
}
ts.figures.drift_timeline(
  per_domain,
  [len(dataset.domains)],
  xlabel="Domain",
  title="Accuracy per domain; the line is the target",
)

# %% [markdown]
# Which digits are confused on the target?

# %%
counts = sum(
  result.final.tables["server_confusion_matrix"]
  for result in results["fed_evolve"]
)
ts.figures.confusion_matrix(
  counts, dataset.schema.classes, title="FedEvolve on the target"
)

# %% [markdown]
# ## Result
#
# Training together beats training alone by about ten points. FedEvolve is
# about ten points above FedAvg on the unseen domain, with both seeds. The gain
# depends on the drift: with steps of 15 degrees it is about one point
# (`results/evolving.md`).

# %%
gain = np.subtract(table["fed_evolve"], table["fed_avg"])
alone = np.subtract(table["fed_avg"], table["local"])
print(f"FedAvg over local training: {alone.mean():+.1f} points")
print(
  f"FedEvolve over FedAvg: {gain.mean():+.1f} points, by seed", gain.round(1)
)
