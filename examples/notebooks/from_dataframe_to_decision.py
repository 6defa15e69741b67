# %% [markdown]
# # From a DataFrame to a decision
#
# You have one table: a row per example, a column that names the client, a
# column for the time, and a label. You want to know:
#
# 1. Which method should the clients use for the next month?
# 2. Is any client harmed by taking part?
#
# The table here is generated, so that the notebook needs no download: machines
# of eight plants, with sensor values and whether a fault followed. Replace the
# next cell by `pandas.read_csv`.

# %%
import numpy as np
import pandas as pd
from tqdm import tqdm

import tff_shift as ts

MONTHS = [f"2026-{month:02d}" for month in range(1, 8)]
METHODS, SEEDS, ROUNDS = ("local", "fed_avg", "fed_avg_ft"), (0, 1, 2), 15


def plant_month(plant, number):
  """Returns the rows of a plant in a month."""
  rng = np.random.default_rng([plant, number])
  sensors = rng.normal(size=(40, 6))
  # The rule turns slowly with the months. Plants 6 and 7 have other machines,
  # for which two sensors mean the opposite.
  angle = 0.12 * number
  rule = np.array([np.cos(angle), np.sin(angle), 0.6, -0.6, 0.3, 0.0])
  if plant >= 6:
    rule[2:4] *= -1.5
  fault = sensors @ rule + 0.4 * rng.normal(size=40) > 0
  rows = pd.DataFrame(sensors, columns=[f"sensor_{i}" for i in range(6)])
  return rows.assign(
    plant=f"plant {plant}",
    month=MONTHS[number],
    fault=np.where(fault, "fault", "none"),
  )


frame = pd.concat(
  [
    plant_month(plant, number)
    for plant in range(8)
    for number in range(len(MONTHS))
  ]
)
frame.head()

# %% [markdown]
# Months are ordered. The last one is the target: nothing is trained on it.

# %%
frame["month"] = pd.to_datetime(frame["month"])
clients, schema = ts.from_dataframe(
  "evolving", frame, label="fault", client="plant", time="month"
)
model = ts.build_model(
  "mlp", input_shape=(6,), num_classes=2, input_dtype=np.float32, width=32
)
print(len(clients), "clients,", schema.times)


# %% [markdown]
# Train each method, and measure each client's own model on the last month.


# %%
def accuracy_by_client(name, seed):
  algorithm = ts.build_algorithm(
    name,
    model,
    ts.hparams(name, optimizer="adam", learning_rate=1e-2),
    num_evaluation_domains=len(MONTHS),
  )
  result = ts.run_evolving(
    algorithm, clients, num_rounds=ROUNDS, run_seed=seed, evaluate_every=ROUNDS
  )
  return result.clients_to_dataframe().assign(method=name, seed=seed)


runs = [(name, seed) for name in METHODS for seed in SEEDS]
with ts.execution.use("auto"):
  table = pd.concat(
    [accuracy_by_client(name, seed) for name, seed in tqdm(runs, desc="runs")]
  )
table.head()

# %% [markdown]
# Rows are clients, columns are methods, values are means over three seeds.

# %%
by_client = table.pivot_table("client_accuracy", "client_name", "method")
by_client = by_client[list(METHODS)]
by_client.round(1)

# %%
ts.figures.distribution_over_clients(
  {name: by_client[name].to_numpy() for name in METHODS},
  title="Accuracy in the last month, one point per plant",
)

# %% [markdown]
# A client is harmed if its accuracy is lower than with training alone. The
# mean over clients does not show it.

# %%
gain = by_client.sub(by_client["local"], axis=0)
summary = pd.DataFrame(
  {
    "mean": by_client.mean(),
    "worst client": by_client.min(),
    "gain over local": gain.mean(),
    "harmed clients": (gain < 0).sum(),
    "most harmed": gain.min(),
  }
)
summary.round(1)

# %% [markdown]
# ## Decision
#
# One shared model (`fed_avg`) harms most plants. It is right for none of them
# alone: plants 6 and 7 pull it away from the others, and the rule turns with
# the months. Fine-tuning the shared model at each plant (`fed_avg_ft`) has the
# best mean, and its worst loss is small. Take it, and let the harmed plants
# keep their own model.
#
# How sure is this? A plant has 40 rows in the last month: one row is 2.5
# points. The seeds vary the training, not the rows. Measure again next month.

# %%
print(summary.round(1).to_string())
best = summary["gain over local"].idxmax()
points = summary.loc[best, "gain over local"]
print(f"take {best}, over local training: {points:+.1f} points")
harmed = gain.index[gain[best] < 0].tolist()
print("keep their own model:", ", ".join(harmed) or "none")
