"""Trains with PFLlib's program; run by `benchmarks.pfl_lib` in its environment.

  python benchmarks/pfl_lib_rounds.py settings.json

Needs PyTorch and not this package. Prints one line of JSON: the mean over
clients of the accuracy on their own test examples, and the name and accuracy of
further readings.
"""

import argparse
import importlib
import itertools
import json
import math
import os
import random
import sys

import numpy as np
import torch
from torch import nn

# The module and the class of an algorithm's server.
_SERVERS = {
  "fed_avg": ("serveravg", "FedAvg"),
  "scaffold": ("serverscaffold", "SCAFFOLD"),
  "fed_dyn": ("serverdyn", "FedDyn"),
  "moon": ("servermoon", "MOON"),
  "fed_proto": ("serverproto", "FedProto"),
  "per_fed_avg": ("serverperavg", "PerAvg"),
  "p_fed_me": ("serverpFedMe", "pFedMe"),
}


class Split(nn.Module):
  """The layers of this package's `mlp`, with its first weights."""

  def __init__(self, num_features: int, width: int, num_classes: int):
    super().__init__()
    sizes = [num_features, width, width, width, 64]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(sizes):
      layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    self.base = nn.Sequential(*layers)
    self.head = nn.Linear(sizes[-1], num_classes)
    for layer in self.modules():
      if isinstance(layer, nn.Linear):
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)

  def forward(self, x):
    """Returns the logits."""
    return self.head(self.base(x))


def _mean_accuracy(clients) -> float:
  """Returns the mean over clients of the accuracy on their test examples.

  PFLlib's is the mean over examples; its AUC beside it fails on NaN.
  """
  accuracies = []
  for client in clients:
    right = total = 0
    for x, y in client.load_test_data():
      with torch.no_grad():
        logits = client.model(x)
      if not torch.isfinite(logits).all():
        return math.nan
      right += int((logits.argmax(dim=1) == y).sum())
      total += len(y)
    accuracies.append(right / total)
  return float(np.mean(accuracies))


def main() -> None:
  """Trains as settings.json says."""
  with open(sys.argv[1], encoding="utf-8") as file:
    settings = json.load(file)
  # PFLlib prints; standard output is for the result.
  output, sys.stdout = sys.stdout, sys.stderr
  os.chdir(os.path.join(settings["pfl_lib"], "system"))
  sys.path.insert(0, os.getcwd())
  seed = settings["seed"]
  random.seed(seed)
  np.random.seed(seed)
  torch.set_num_threads(1)

  torch.manual_seed(seed)
  model = Split(settings["num_features"], settings["width"], 10)
  # The defaults of PFLlib's main.py, where settings.json has no value.
  arguments = argparse.Namespace(
    **{
      "algorithm": settings["algorithm"],
      "model": model,
      "device": "cpu",
      "num_classes": 10,
      "join_ratio": 1.0,
      "random_join_ratio": False,
      "few_shot": 0,
      "time_select": False,
      "goal": "test",
      "time_threthold": math.inf,
      "save_folder_name": "items",
      "top_cnt": 100,
      "auto_break": False,
      # Training metrics are not needed, and take gradient steps in some.
      "eval_gap": 10**9,
      "client_drop_rate": 0.0,
      "train_slow_rate": 0.0,
      "send_slow_rate": 0.0,
      "dlg_eval": False,
      "dlg_gap": 100,
      "batch_num_per_client": 2,
      "num_new_clients": 0,
      "fine_tuning_epoch_new": 0,
      "learning_rate_decay": False,
      "learning_rate_decay_gamma": 0.99,
      "server_learning_rate": 1.0,
    },
    **settings["arguments"],
  )
  module, name = _SERVERS[settings["algorithm"]]
  server = getattr(importlib.import_module(f"flcore.servers.{module}"), name)(
    arguments, 0
  )
  # A client's constructor sets a seed of its own.
  torch.manual_seed(seed)
  server.save_results = server.save_global_model = lambda: None
  # Its loop trains global_rounds + 1 times, evaluates before each, and divides
  # by the number of rounds after the first.
  server.evaluate = lambda *_: server.rs_test_acc.append(0.0)
  server.evaluate_one_step = server.evaluate
  if settings["algorithm"] == "p_fed_me":
    server.evaluate_personalized = lambda *_: server.rs_test_acc_per.append(0.0)
  server.train()

  readings = {}
  clients = server.clients
  if settings["algorithm"] == "p_fed_me":
    # What a client keeps as personalized_params is the list of its model's own,
    # which are its copy of the server model after training.
    readings["local copy"] = _mean_accuracy(clients)
  if settings["algorithm"] == "fed_proto":
    readings["classifier"] = _mean_accuracy(clients)
    counts = [client.test_metrics()[:2] for client in clients]
    readings["as reported"] = float(np.mean([k / n for k, n in counts]))
  elif settings["algorithm"] == "per_fed_avg":
    server.send_models()
    readings["server model"] = _mean_accuracy(clients)
    for client in clients:
      client.train_one_step()
    readings["as reported"] = _mean_accuracy(clients)
  else:
    server.send_models()
    readings["as reported"] = _mean_accuracy(clients)
  print(json.dumps(readings), file=output)


if __name__ == "__main__":
  main()
