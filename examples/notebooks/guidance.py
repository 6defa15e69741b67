# %% [markdown]
# # Guidance
#
# Eight clients hold digits with different classes and different colours. A
# query arrives at the server, and one client should answer it: which one?
# FedDRM trains a guide together with the clients' models. The guide sends a
# query to the client whose data resemble it most.
#
# Without a guide, a query goes to any client, or all clients vote.

# %%
import numpy as np
from tqdm import tqdm

import tff_shift as ts
from tff_shift.scenarios.guidance import queries
from tff_shift.simulation.engine import client_data

NUM_CLIENTS, ROUNDS = 8, 40

# %%
dataset = ts.load_guidance(
  "digits",
  num_clients=NUM_CLIENTS,
  partition="dirichlet_0.3",
  intensity="high",
  seed=0,
)


# %%
def train(name, model_name, **own):
  shape = {"input_shape": (28, 28, 3), "num_classes": 10}
  if model_name == "guided_cnn":
    shape["num_clients"] = NUM_CLIENTS
  hparams = ts.hparams(
    name, momentum=0.9, learning_rate=0.05, cosine_rounds=ROUNDS,
    batch_size=32, **own,
  )  # fmt: skip
  algorithm = ts.build_algorithm(
    name, ts.build_model(model_name, **shape), hparams, num_queries=256
  )
  with tqdm(total=ROUNDS, desc=name) as bar:
    step = ts.LambdaCallback(on_step=lambda *told: bar.update())
    result = ts.run_guidance(
      algorithm,
      dataset.train,
      dataset.test,
      num_rounds=ROUNDS,
      run_seed=0,
      evaluate_every=ROUNDS,
      callbacks=[step],
    )
  return algorithm, result


with ts.execution.use("auto"):
  fed_drm, guided = train("fed_drm", "guided_cnn", lambda_=0.9)
  _, averaged = train("fed_avg", "cnn")

# %% [markdown]
# To which client are the queries of each client sent? The diagonal are the
# queries that are answered where they come from. The guide was not told where
# that is.

# %%
ts.figures.confusion_matrix(
  guided.routing,
  [f"client {client}" for client in range(NUM_CLIENTS)],
  title="Queries of a client (rows) and their routes (columns)",
)

# %% [markdown]
# How much is the guide worth? The same clients with the same models answer the
# same queries, once by the guide's route and once by a random route.

# %%
x = np.concatenate([each.x for each in dataset.test])
y = np.concatenate([each.y for each in dataset.test])
origin = np.repeat(range(NUM_CLIENTS), [len(each.y) for each in dataset.test])
random_routes = np.random.default_rng(0).integers(0, NUM_CLIENTS, len(y))
with ts.execution.use("auto"):
  federation = queries.Federation(
    fed_drm,
    guided.server_state,
    guided.client_states,
    client_data.training_data(dataset.train, run_seed=0),
  )
  answers = {
    "guide": federation.answer(x).classes,
    "random client": federation.answer(x, random_routes).classes,
  }
right = {name: 100 * (classes == y) for name, classes in answers.items()}
ts.figures.distribution_over_clients(
  {
    name: [each[origin == client].mean() for client in range(NUM_CLIENTS)]
    for name, each in right.items()
  },
  title="Whose queries are answered correctly?",
  xlabel="Correct answers to the queries of a client (%)",
)

# %% [markdown]
# ## Result
#
# The guide's routes are far better than random ones: a client is good at its
# own classes and colours only. One shared model, which answers every query
# itself, is about as good as the guided clients on these small images.
# Guidance is for clients whose models should stay different.

# %%
for name, each in right.items():
  print(f"{name:14} {each.mean():5.1f} %")
vote = averaged.final()["system_accuracy"]
print(f"{'one shared model':14} {vote:5.1f} %")
gain = right["guide"].mean() - right["random client"].mean()
print(f"gain of the guide: {gain:+.1f} points")
