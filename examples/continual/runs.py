"""Continual learning: the steps of a run, and the scenario."""

from typing import NamedTuple

import numpy as np

from tff_shift.command_line.flags import participation_flags
from tff_shift.learning import evaluation
from tff_shift.reporting.figures import figures
from tff_shift.scenarios import scenario
from tff_shift.scenarios.evolving import simulation as evolving
from tff_shift.simulation.engine import driver
from tff_shift.simulation.engine import rounds


class Measured(NamedTuple):
  """The accuracy in percent on each domain so far."""

  domain: int
  accuracies: np.ndarray

  def rows(self, step):
    """See `callbacks.Measurements`."""
    accuracy, mean = self.accuracies[-1], self.accuracies.mean()
    yield {"domain": step}, {"accuracy": accuracy, "mean_accuracy": mean}


class Domains(driver.Steps):
  """A domain is a step of several rounds."""

  make = Measured

  def __init__(self, algorithm, clients, seed, plan):
    self.num_steps = plan.num_steps
    self._algorithm = algorithm
    self._num_rounds = plan.settings["rounds_per_domain"]
    self._seed = seed
    self._data = [evolving.training_data(each, seed) for each in clients]
    no_seed = np.zeros(2, np.int32)
    self._tests = [each.test._replace(seed=no_seed) for each in clients]

  def start(self, storage, callback):
    """Starts with the data of the first domain."""
    return rounds.Rounds(
      self._algorithm,
      [self._only(each, 0) for each in self._data],
      run_seed=self._seed,
      storage=storage,
      on_loss=callback.on_loss,
      present=self._present(0),
      **participation_flags.chosen(),
    )

  def step(self, running, step, measured):
    """Trains on a domain and evaluates on all so far."""
    running.present = self._present(step - 1)
    running.data = [self._only(each, step - 1) for each in self._data]
    for _ in range(self._num_rounds):
      running.step()
    means = self._algorithm.evaluate_clients(
      running.server_state, running.client_states, running.data, self._tests
    )
    found = evaluation.report(means, np.asarray)["accuracy"]
    measured.append(Measured(step, np.array(found[:step], float)))
    return running.losses[-1]

  def told(self, measured):
    """Returns what callbacks are told."""
    return measured.domain, None, measured

  def _present(self, domain):
    # Clients without examples of the domain are not sampled.
    return np.flatnonzero([each.domain_sizes[domain] for each in self._data])

  def _only(self, data, domain):
    sizes = np.where(np.arange(len(data.domain_sizes)) == domain, 1, 0)
    sizes *= data.domain_sizes
    start = data.domain_sizes[:domain].sum()
    own = slice(start, start + sizes[domain])
    return data._replace(
      x=data.x[own], y=data.y[own], domain_sizes=sizes, num_examples=sizes.sum()
    )


class Continual(scenario.Scenario):
  """Clients train on one domain after the other."""

  def build_options(self, data):
    """Returns the number of domains."""
    return {"num_evaluation_domains": len(data[0].test.domain_sizes)}

  def run_one(self, algorithm, data, seed, run):
    """Trains and evaluates."""
    steps = Domains(algorithm, data, seed, self.plan)
    return driver.run(steps, run.callbacks, run.checkpoint)

  def metrics(self, trial, seed, result):
    """Returns the accuracy after the last domain, and what was forgotten."""
    last = result.measured[-1].accuracies
    then = [each.accuracies[-1] for each in result.measured]
    return {"accuracy": last.mean(), "forgetting": np.mean(then - last)}

  def columns(self):
    """Returns the metrics of the table."""
    return ["accuracy", "forgetting"]

  def draw_all(self, by_label, folder):
    """Draws the accuracy on each domain at the end."""
    figures.accuracy_per_domain(
      {
        label: [each.measured[-1].accuracies for each in by_seed.values()]
        for label, by_seed in by_label.items()
      },
      [*map(str, range(1, self.plan.num_steps + 1))],
      None,
      folder.figure_path("accuracy_per_domain"),
    )
