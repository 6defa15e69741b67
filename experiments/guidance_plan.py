"""The flags of `experiments.guidance`, and what they ask for."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
from absl import flags

from experiments import command_line
from experiments import contestants as contestants_lib
from tff_shift import models
from tff_shift.data import color_transforms
from tff_shift.data import datasets as datasets_lib
from tff_shift.data import guidance
from tff_shift.learning import aggregation
from tff_shift.models import guided_model
from tff_shift.models import lenet

FLAGS = flags.FLAGS

SCENARIO = "guidance"

# The width of the client branch that is put on a model without one.
_GUIDE_WIDTH = 64

# The settings of the FedDRM paper, which all algorithms share.
_DEFAULTS = {
  "local_steps": 10,
  "batch_size": 128,
  "learning_rate": 0.01,
  "momentum": 0.9,
  "weight_decay": 5e-4,
  "client_weighting": "num_examples",
  "fine_tuning_steps": 100,
}
# Head and backbone together take as many steps as others take.
_OWN_DEFAULTS = {"fed_rep": {"head_steps": 5, "local_steps": 5}}


def define_flags() -> None:
  """Defines the flags of this binary."""
  described = {name: str(value) for name, value in _DEFAULTS.items()}
  described["local_steps"] += "; fed_rep: 5, besides 5 of the head"
  described["cosine_rounds"] = "--rounds"
  command_line.define_common_flags(
    SCENARIO, defaults=described, grids=("learning_rate", "lambda_")
  )
  flags.DEFINE_string(
    "dataset",
    "digits",
    "One of " + ", ".join(datasets_lib.names(SCENARIO)) + ".",
  )
  flags.DEFINE_string(
    "partition",
    "dirichlet_0.3",
    "How classes are dealt to clients: dirichlet_<alpha>, or <S>_spc, S"
    " shards per client.",
  )
  flags.DEFINE_string(
    "intensity",
    "high",
    "How far the clients' colours are moved: "
    + ", ".join(color_transforms.INTENSITIES)
    + ".",
  )
  flags.DEFINE_integer("num_clients", 8, "Number of clients.")
  flags.DEFINE_integer(
    "max_examples",
    None,
    "Deals at most so many examples of the data set. Default: all.",
  )
  flags.DEFINE_integer("rounds", 60, "Number of rounds.")
  flags.DEFINE_float(
    "participation",
    1.0,
    "Share of clients in a round, above 0 and at most 1.",
  )
  flags.DEFINE_integer(
    "evaluate_every", 20, "Evaluates after every so many rounds."
  )
  flags.DEFINE_integer(
    "final_rounds",
    1,
    "Final metrics are means over the last so many rounds, each of which is"
    " evaluated (50 in the paper).",
  )
  flags.DEFINE_string(
    "model",
    None,
    "One of " + ", ".join(models.names()) + ". One without a client branch is"
    " given one on its embedding. Default: the data set's.",
  )
  flags.DEFINE_integer(
    "model_width",
    None,
    "Channels of the first layer, for models with an option width. Default:"
    " the model's.",
  )
  flags.DEFINE_string(
    "sharing",
    None,
    "What the two tasks of --model=lenet share: "
    + ", ".join(lenet.SHARED_STAGES)
    + ". Default: deep.",
  )


class Plan(NamedTuple):
  """What the flags ask for, checked.

  Attributes:
    contestants: What is compared.
    seeds: The seeds.
    datasets: What the clients hold, by seed.
    model: The model.
    aggregators: How the server combines updates, by algorithm.
  """

  contestants: Sequence[contestants_lib.Contestant]
  seeds: Sequence[int]
  datasets: Mapping[int, guidance.GuidanceDataset]
  model: guided_model.GuidedModel
  aggregators: Mapping[str, aggregation.Aggregator | None]


def make_plan() -> Plan:
  """Checks all flags and loads the data, before anything is written.

  Returns:
    The plan.

  Raises:
    UsageError: If a flag or a file is wrong.
  """
  for flag, allowed in (
    ("dataset", datasets_lib.names(SCENARIO)),
    ("intensity", color_transforms.INTENSITIES),
    ("model", (None, *models.names())),
    ("sharing", (None, *lenet.SHARED_STAGES)),
  ):
    command_line.require(
      flag,
      FLAGS[flag].value in allowed,
      "one of " + ", ".join(name for name in allowed if name),
    )
  for flag in (
    "num_clients",
    "max_examples",
    "rounds",
    "evaluate_every",
    "final_rounds",
    "model_width",
  ):
    value = FLAGS[flag].value
    command_line.require(flag, value is None or value >= 1, "at least 1")
  command_line.require(
    "final_rounds",
    FLAGS.final_rounds <= FLAGS.rounds,
    f"at most --rounds={FLAGS.rounds}",
  )
  command_line.require(
    "participation", 0 < FLAGS.participation <= 1, "above 0 and at most 1"
  )
  contestants = _contestants()
  seeds = command_line.chosen_seeds("seeds")
  with command_line.usage_errors():
    datasets = {
      seed: guidance.load_guidance(
        FLAGS.dataset,
        num_clients=FLAGS.num_clients,
        partition=FLAGS.partition,
        intensity=FLAGS.intensity,
        seed=seed,
        max_examples=FLAGS.max_examples,
        data_dir=FLAGS.data_dir,
      )
      for seed in seeds
    }
    model = _build_model(datasets[seeds[0]])
  aggregators = command_line.chosen_aggregators(
    [(each.algorithm, each.hparams) for each in contestants],
    num_clients=FLAGS.num_clients,
    participation=FLAGS.participation,
    num_rounds=FLAGS.rounds,
  )
  return Plan(contestants, seeds, datasets, model, aggregators)


def _contestants() -> list[contestants_lib.Contestant]:
  """Returns every algorithm at every rate, and FedDRM at every lambda."""
  found = []
  for name in command_line.chosen_algorithms(SCENARIO):
    defaults = _DEFAULTS | {"cosine_rounds": FLAGS.rounds}
    defaults |= _OWN_DEFAULTS.get(name, {})
    found += contestants_lib.over_grid(
      name,
      {
        "learning_rate": "numbers above 0",
        "lambda_": "numbers from 0 to 1",
      },
      defaults,
    )
  return found


def _build_model(
  dataset: guidance.GuidanceDataset,
) -> guided_model.GuidedModel:
  name = FLAGS.model or datasets_lib.get(FLAGS.dataset).models[SCENARIO]
  options = {}
  if FLAGS.sharing is not None:
    options["sharing"] = FLAGS.sharing
  if FLAGS.model_width is not None:
    options["width"] = FLAGS.model_width
  if "num_clients" in models.options(name):
    options["num_clients"] = FLAGS.num_clients
  model = models.build(
    name,
    input_shape=dataset.sample.shape,
    num_classes=len(dataset.class_names),
    input_dtype=tf.uint8,
    **options,
  )
  if isinstance(model, guided_model.GuidedModel):
    return model
  return guided_model.with_guide(model, FLAGS.num_clients, _GUIDE_WIDTH)
