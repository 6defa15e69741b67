"""Counts the runs in which clustered methods find the clients' concepts.

  python -m benchmarks.concept_groups --seeds=0,1,2,3,4
  python -m benchmarks.concept_groups --output=results/raw/concept_groups.json

Half of the clients have the embedded digits, the other half the same with the
labels 9 - y, from the start and without drift (`--concept_drift=groups` of
`experiments.evolving`). A run has found the concepts if all clients of a
concept predict with the same model, and clients of the other concept with
another. The clients of FedEM and FedRC count for the model with the largest
weight.

IFCA has three starts: `random`, one draw of its models; `redrawn`, as in its
authors' program, drawn again until each model is chosen by 35 % of the clients,
at most 100 times; `concepts`, from a model of each concept, which FedAvg has
trained on the clients of this concept alone.
"""

import collections
import functools
import json
import pathlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags

from tff_shift import algorithms
from tff_shift import execution
from tff_shift import models
from tff_shift.algorithms.parts import model_stack
from tff_shift.data import client_dataset
from tff_shift.data.shifts import concepts as concepts_lib
from tff_shift.data.shifts import evolving
from tff_shift.learning import algorithm as algorithm_lib
from tff_shift.learning import randomness
from tff_shift.models import split_model
from tff_shift.scenarios.evolving import simulation
from tff_shift.simulation.engine import rounds

FLAGS = flags.FLAGS

_NUM_CLIENTS, _NUM_DOMAINS = 10, 4
_SHARE, _MOST_DRAWS = 0.35, 100
_COMMON = {"local_epochs": 1, "batch_size": 20, "learning_rate": 0.1}
# The algorithm, the start and the hyper-parameters of each method.
_METHODS = {
  "fed_avg": ("fed_avg", "random", {}),
  "ifca": ("ifca", "random", {}),
  "ifca, redrawn": ("ifca", "redrawn", {}),
  "ifca, concepts": ("ifca", "concepts", {}),
  "fe_sem": ("fe_sem", "random", {}),
  "fed_em": ("fed_em", "random", {"num_models": 2}),
  "fed_rc": ("fed_rc", "random", {"num_models": 2}),
  "clustered_fl": ("clustered_fl", "random", {}),
  "clustered_fl, lower thresholds": (
    "clustered_fl",
    "random",
    {"longest_norm": 0.6, "rounds_before_split": 5},
  ),
  "flux": ("flux", "random", {}),
  "flux, largest gap": ("flux", "random", {"elbow": "largest_gap"}),
  "fed_drift": ("fed_drift", "random", {"start": "clients", "num_models": 12}),
  "feroma": ("feroma", "random", {}),
}


@functools.cache
def _model() -> split_model.SplitModel:
  return models.build(
    "mlp",
    input_shape=(28, 28, 1),
    num_classes=10,
    input_dtype=tf.uint8,
    width=32,
  )


@functools.cache
def _built(name: str, **hparams: Any) -> algorithm_lib.FederatedAlgorithm:
  """Builds an algorithm once for all runs."""
  module = algorithms.get(name)
  return algorithms.build(
    module,
    _model(),
    module.HParams(**_COMMON, **hparams),
    num_clients=_NUM_CLIENTS,
    num_evaluation_domains=_NUM_DOMAINS,
  )


@functools.cache
def _in_graph(function: Callable[..., Any]) -> Callable[..., Any]:
  return tf.function(function, autograph=False, reduce_retracing=True)


def _redrawn(run: rounds.Rounds, seed: int) -> tuple[Any, int]:
  """Draws IFCA's models until clients choose each of them.

  Returns:
    The models, and the number of draws.
  """
  choose = _in_graph(_best_model)
  for draw in range(_MOST_DRAWS):
    found = _in_graph(_first_models)(
      tf.constant(randomness.server_seed(1000 * draw + seed))
    )
    chosen = [int(choose(found, each)) for each in run.data]
    if np.bincount(chosen, minlength=2).min() >= _SHARE * len(chosen):
      break
  return tf.nest.map_structure(np.asarray, found), draw + 1


def _first_models(seed):
  return model_stack.initial_models(_model(), 2, seed)


def _best_model(stack, data):
  return model_stack.smallest(model_stack.mean_losses(_model(), stack, data))


def _of_concepts(
  data: Sequence[client_dataset.ClientDataset],
  of_client: np.ndarray,
  seed: int,
) -> Any:
  """Trains a model on the clients of each concept, and stacks them."""
  found = []
  for concept in range(2):
    own = [data[i] for i in np.flatnonzero(of_client == concept)]
    run = rounds.Rounds(_built("fed_avg"), own, run_seed=seed)
    for _ in range(FLAGS.pretraining_rounds):
      run.step()
    found.append(run.server_state.weights)
  return tf.nest.map_structure(lambda *each: np.stack(each), *found)


def _predict(spec, weights, state, data, target, probe, round_num):
  """Returns the prepared state, the accuracy on target, the logits of probe."""
  prepared = state
  if spec.prepare_client is not None:
    prepared = spec.prepare_client(weights, state, data, round_num)
  logits = spec.predict_as_client(weights, prepared, data, target)
  hits = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), target.y)
  return (
    prepared,
    tf.reduce_mean(tf.cast(hits, tf.float32)),
    spec.predict_as_client(weights, prepared, data, probe),
  )


def _groups(
  name: str, prepared: Sequence[Any], logits: Sequence[tf.Tensor]
) -> list[int]:
  """Returns the number of the model that each client predicts with."""
  if name in ("fed_em", "fed_rc"):
    return [int(np.argmax(pi)) for pi in prepared]
  # Clients with one model have the same logits of the same examples.
  keys = [each.numpy().tobytes() for each in logits]
  return [keys.index(key) for key in keys]


def _target(client: evolving.Client) -> client_dataset.ClientDataset:
  """Returns a client's examples of the last step."""
  size = int(client.test.domain_sizes[-1])
  return client.test._replace(
    x=client.test.x[-size:],
    y=client.test.y[-size:],
    domain_sizes=np.int32([size]),
    num_examples=np.int32(size),
    seed=np.zeros(2, np.int32),
  )


def measure(method: str, dirichlet: float, seed: int) -> dict[str, Any]:
  """Runs a method.

  Args:
    method: A name of `_METHODS`.
    dirichlet: The concentration of the clients' label distributions.
    seed: Seed of data and run.

  Returns:
    Whether it has found the concepts, the numbers of models that clients and
    that clients of both concepts predict with, the mean client accuracy in
    percent, and the draws of the start.
  """
  name, start, hparams = _METHODS[method]
  dataset = evolving.load_evolving(
    "rotated_digits", angle_step=0, num_domains=_NUM_DOMAINS, seed=seed
  )
  concepts = concepts_lib.draw(
    "groups",
    num_clients=_NUM_CLIENTS,
    num_domains=_NUM_DOMAINS,
    num_classes=10,
    seed=seed,
  )
  clients = evolving.assemble_clients(
    dataset,
    num_clients=_NUM_CLIENTS,
    dirichlet=dirichlet,
    concepts=concepts,
    seed=seed,
  )
  data = [simulation.training_data(client, seed) for client in clients]
  if hasattr(algorithms.get(name).HParams(), "task_rounds"):
    hparams = hparams | {"task_rounds": FLAGS.rounds}
  built = _built(name, **hparams)
  run = rounds.Rounds(built, data, run_seed=seed)
  draws, of_client = 1, concepts.of_domain[:, 0]
  if start != "random":
    if start == "redrawn":
      weights, draws = _redrawn(run, seed)
    else:
      weights = _of_concepts(data, of_client, seed)
    run.server_state = run.server_state._replace(weights=weights)
  for _ in range(FLAGS.rounds):
    run.step()
  predict = _in_graph(functools.partial(_predict, built.spec))
  prepared, accuracies, logits = [], [], []
  probe = _target(clients[0])
  for client, state in zip(clients, run.client_states, strict=True):
    found, accuracy, on_probe = predict(
      run.server_state.weights,
      state,
      data[client.client_id],
      _target(client),
      probe,
      tf.constant(FLAGS.rounds),
    )
    prepared.append(found)
    accuracies.append(float(accuracy))
    logits.append(on_probe)
  groups = _groups(name, prepared, logits)
  pairs = set(zip(of_client.tolist(), groups, strict=True))
  return {
    "method": method,
    "dirichlet": dirichlet,
    "seed": seed,
    "found": len(pairs) == 2 and len(set(groups)) == 2,
    "num_models": len(set(groups)),
    "num_mixed": len(pairs) - len(set(groups)),
    "accuracy": 100 * float(np.mean(accuracies)),
    "draws": draws,
  }


def main(_) -> None:
  """Prints a row for each method and concentration."""
  found = collections.defaultdict(list)
  with execution.use("auto"):
    for method in FLAGS.methods or _METHODS:
      for dirichlet in map(float, FLAGS.dirichlet):
        for seed in map(int, FLAGS.seeds):
          found[method, dirichlet].append(measure(method, dirichlet, seed))
        runs = found[method, dirichlet]
        accuracy = [each["accuracy"] for each in runs]
        print(
          f"| {method} | {dirichlet:g} | {sum(each['found'] for each in runs)}"
          f" of {len(runs)} | {[each['num_models'] for each in runs]} |"
          f" {[each['num_mixed'] for each in runs]} |"
          f" {np.mean(accuracy):.1f} ± {np.std(accuracy, ddof=1):.1f} |"
          f" {[each['draws'] for each in runs]} |",
          flush=True,
        )
  if FLAGS.output:
    pathlib.Path(FLAGS.output).write_text(
      json.dumps([each for runs in found.values() for each in runs], indent=1)
    )


if __name__ == "__main__":
  flags.DEFINE_list("methods", None, "Methods; default: all.")
  flags.DEFINE_list("dirichlet", ["0.3", "100"], "Concentrations.")
  flags.DEFINE_list("seeds", ["0", "1", "2", "3", "4"], "Seeds, at least two.")
  flags.DEFINE_integer("rounds", 30, "Rounds of a run.")
  flags.DEFINE_integer("pretraining_rounds", 5, "Rounds of a concept's start.")
  flags.DEFINE_string("output", None, "A JSON file for all runs.")
  app.run(main)
