"""Hyper-parameters: frozen dataclasses whose fields have valid ranges.

An algorithm's `HParams` declares its hyper-parameters with documentation and
valid ranges. Command lines build their flags from it, and `validate` refuses
invalid values with one line that names the field and the allowed values.
"""

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from tff_shift._util import arguments

# Steps, examples and rounds are counted in int32, in sums and products of
# several numbers. Larger values also look like a run that hangs.
_MOST = 10_000_000


def hparam(
  default: Any,
  help: str,
  *,
  choices: tuple[str, ...] | None = None,
  minimum: float | None = None,
  maximum: float | None = None,
  exclusive_minimum: bool = False,
  or_zero: bool = False,
  published: bool = False,
) -> Any:
  """Declares a field of a dataclass of hyper-parameters.

  Args:
    default: The default value; its type is the type of the field.
    help: The meaning of the field, including the meaning of its limits.
    choices: The allowed values, for strings.
    minimum: The smallest allowed value.
    maximum: The largest allowed value.
    exclusive_minimum: Whether `minimum` itself is refused.
    or_zero: Whether 0 is allowed below `minimum`.
    published: Whether the default is that of the method's paper or program. In
      a comparison only a flag with the method's name replaces it.

  Returns:
    A dataclass field.
  """
  return dataclasses.field(
    default=default,
    metadata={
      "help": help,
      "choices": choices,
      "minimum": minimum,
      "maximum": maximum,
      "exclusive_minimum": exclusive_minimum,
      "or_zero": or_zero,
      "published": published,
    },
  )


# The choices of `variant_hparam`, and the default of `switch_hparam`.
_PUBLISHED, _PROGRAM = "published", "program"
_VARIANT = "variant"

# The program of the FedDRM paper runs several baselines.
FED_DRM_PROGRAM = (
  "the variant that the program of the FedDRM paper runs under this name"
)


def variant_hparam(program: str) -> Any:
  """Declares the hyper-parameter `variant`.

  A program that ran a method for a paper's tables may differ from the paper
  that published the method. This option reproduces the program.

  Args:
    program: What `program` means, with the program's name.

  Returns:
    A dataclass field.
  """
  return hparam(
    _PUBLISHED,
    f"published: the method of its own paper; program: {program}.",
    choices=(_PUBLISHED, _PROGRAM),
  )


def switch_hparam(
  help: str, *, published: str, program: str, others: tuple[str, ...] = ()
) -> Any:
  """Declares a choice whose default depends on the variant, see `switch`.

  Args:
    help: The meaning of the choices.
    published: The choice of the variant `published`.
    program: The choice of the variant `program`.
    others: Further choices.

  Returns:
    A dataclass field of the choice's name; its default is `variant`.
  """
  return hparam(
    _VARIANT,
    f"{help}; variant, {published} (published) or {program} (program).",
    choices=(_VARIANT, published, program, *others),
  )


def switch(hparams: Any, name: str) -> str:
  """Returns the choice of a field of `switch_hparam`.

  Args:
    hparams: Hyper-parameters with a `variant`.
    name: The name of the field.

  Returns:
    The given choice, or that of the variant.
  """
  value = getattr(hparams, name)
  if value != _VARIANT:
    return value
  (field,) = (each for each in dataclasses.fields(hparams) if each.name == name)
  _, published, program, *_ = field.metadata["choices"]
  return program if hparams.variant == _PROGRAM else published


def is_changed(hparams: Any, name: str) -> bool:
  """Returns whether a field has another value than its default."""
  (field,) = (each for each in dataclasses.fields(hparams) if each.name == name)
  return getattr(hparams, name) != field.default


def describe_limits(field: dataclasses.Field) -> str:
  """Describes the allowed values of a field in words."""
  choices = field.metadata["choices"]
  if choices:
    return "one of " + ", ".join(choices)
  if isinstance(field.default, bool):
    return "True or False"
  minimum, maximum = field.metadata["minimum"], field.metadata["maximum"]
  kind = "an integer" if isinstance(field.default, int) else "a number"
  limits = []
  if minimum is not None:
    limits.append(
      f"above {minimum}"
      if field.metadata["exclusive_minimum"]
      else f"at least {minimum}"
    )
  if maximum is not None:
    limits.append(f"at most {maximum}")
  allowed = " ".join([kind, " and ".join(limits)]).strip()
  return f"{allowed}, or 0" if field.metadata["or_zero"] else allowed


def _is_allowed(field: dataclasses.Field, value: Any) -> bool:
  choices = field.metadata["choices"]
  if choices:
    return value in choices
  # Python counts bools as integers; here they are allowed in bool fields only.
  if isinstance(field.default, bool) or isinstance(value, bool):
    return isinstance(field.default, bool) and isinstance(value, bool)
  if isinstance(field.default, int):
    if not isinstance(value, int):
      return False
  elif not isinstance(value, int | float) or not arguments.is_number(value):
    return False
  if value == 0 and field.metadata["or_zero"]:
    return True
  minimum, maximum = field.metadata["minimum"], field.metadata["maximum"]
  if minimum is not None and (
    value < minimum
    or (field.metadata["exclusive_minimum"] and value == minimum)
  ):
    return False
  return maximum is None or value <= maximum


def _not_held(field: dataclasses.Field, value: Any) -> str:
  """Returns the allowed range if a graph cannot hold a value; otherwise ""."""
  if isinstance(value, bool | str):
    return ""
  if isinstance(value, int) and isinstance(field.default, int):
    return "" if abs(value) <= _MOST else f"at most {_MOST}"
  return "" if arguments.is_float32(value) else arguments.FLOAT32


def validate(hparams: Any) -> None:
  """Checks every field of a dataclass of hyper-parameters.

  Args:
    hparams: An instance of a subclass of `HParams`.

  Raises:
    ValueError: If a value is not allowed; one line that names the field, the
      value and the allowed values. If `hparams` is not an `HParams`.
  """
  if not isinstance(hparams, HParams):
    raise ValueError(
      f"hparams={hparams!r} is not allowed: it must be an HParams of the"
      " algorithm"
    )
  for field in dataclasses.fields(hparams):
    value = getattr(hparams, field.name)
    requirement = (
      _not_held(field, value)
      if _is_allowed(field, value)
      else describe_limits(field)
    )
    if requirement:
      raise ValueError(
        f"{field.name}={arguments.shown(value)} is not allowed: it must be"
        f" {requirement}"
      )
  hparams.check_together()


@dataclasses.dataclass(frozen=True)
class HParams:
  """Hyper-parameters; subclasses declare their fields with `hparam`.

  NumPy scalars are converted to Python's, since an int64 does not fit a graph's
  int32, and -0.0 becomes 0.0.
  """

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = arguments.as_python(getattr(self, field.name))
      if value == 0 and isinstance(value, float):
        value = 0.0  # Not -0.0, which would differ in results.
      object.__setattr__(self, field.name, value)

  def check_together(self) -> None:
    """Refuses values that are allowed individually but not together.

    Raises:
      ValueError: One line that names a field.
    """


def refuse_ignored(
  hparams: HParams, field: str, chooser: str, *values: Any
) -> None:
  """Refuses another than the default value where a field has no effect.

  Args:
    hparams: The hyper-parameters.
    field: The name of the field.
    chooser: The name of the field that decides.
    *values: The values of `chooser` for which the field has an effect.

  Raises:
    ValueError: One line that names both.
  """
  value, chosen = getattr(hparams, field), getattr(hparams, chooser)
  if value != getattr(type(hparams), field) and chosen not in values:
    raise ValueError(
      f"{field}={value} is not allowed with {chooser}={chosen}: it belongs to"
      f" {chooser}={' or '.join(map(str, values))}"
    )


def make_class(fields: Iterable[Mapping[str, Any]]) -> type[HParams]:
  """Makes a class of hyper-parameters from declarations of its fields.

  Args:
    fields: For each field, its `name` and the arguments of `hparam`.

  Returns:
    A frozen dataclass, a subclass of `HParams`.
  """
  declared = []
  for each in fields:
    options = dict(each)
    name = options.pop("name")
    declared.append((name, type(options["default"]), hparam(**options)))
  return dataclasses.make_dataclass(
    "HParams", declared, bases=(HParams,), frozen=True
  )


@dataclasses.dataclass(frozen=True)
class LocalWorkHParams(HParams):
  """Hyper-parameters of local training, without the learning rate."""

  local_steps: int = hparam(
    5,
    "Local training iterations per round (tau in the papers). An iteration is"
    " one gradient step on a batch of each source domain of the client; without"
    " domains it is one gradient step.",
    minimum=1,
  )
  local_epochs: int = hparam(
    0,
    "Local epochs per round; if above 0, replaces local_steps. The number of"
    " iterations is rounded up.",
    minimum=0,
  )
  batch_size: int = hparam(32, "Examples per batch.", minimum=1)
  optimizer: str = hparam(
    "sgd",
    "The clients' optimizer; its state is reset every round.",
    choices=("sgd", "adam", "adamw"),
  )
  momentum: float = hparam(
    0.0,
    "Momentum of sgd; 0: plain gradient descent.",
    minimum=0,
    maximum=1,
  )
  weight_decay: float = hparam(
    0.0,
    "Weight decay: added to the gradient as weight_decay * weight (sgd, adam)"
    " or decoupled from it (adamw); 0: none.",
    minimum=0,
  )
  straggler_ratio: float = hparam(
    0.0,
    "Probability that a client trains only a random number of iterations,"
    " uniform in 1..tau (Table 6 of the FedEvolve paper); 0: never.",
    minimum=0,
    maximum=1,
  )
  client_weighting: str = hparam(
    "uniform",
    "A client's weight in the server's mean: uniform (Algorithms 3 and 4 of"
    " the FedEvolve paper) or num_examples.",
    choices=("uniform", "num_examples"),
  )
  personal_norm: str = hparam(
    "none",
    "Which parts of batch normalisation are personal: none (FedAvg);"
    " statistics, the running means and variances (SiloBN); all, also scale and"
    " shift (FedBN).",
    choices=("none", "statistics", "all"),
  )

  def check_together(self) -> None:
    """Refuses more examples per round than an int32 can count."""
    if not self.local_epochs and self.local_steps * self.batch_size >= 2**31:
      raise ValueError(
        f"local_steps={self.local_steps} is not allowed with batch_size="
        f"{self.batch_size}: their product, the examples that a client draws in"
        f" a round, must be below {2**31}"
      )


def client_weighting(hparams: HParams) -> str:
  """Returns a client's weight in the server's mean, uniform by default."""
  return getattr(hparams, "client_weighting", "uniform")


def personal_norm(hparams: HParams) -> str:
  """Returns the personal parts of batch normalisation, none by default."""
  return getattr(hparams, "personal_norm", "none")


@dataclasses.dataclass(frozen=True)
class LocalHParams(LocalWorkHParams):
  """Hyper-parameters of local training with a given learning rate."""

  learning_rate: float = hparam(
    0.05, "The clients' learning rate.", minimum=0, exclusive_minimum=True
  )
  cosine_rounds: int = hparam(
    0,
    "Cosine schedule of the learning rate: the number of rounds until it"
    " reaches 0; 0: constant rate.",
    minimum=0,
  )
  decay_rounds: int = hparam(
    0,
    "Step schedule of the learning rate: the number of rounds after which it is"
    " multiplied by decay_factor, again and again; 1: exponential; 0: constant"
    " rate.",
    minimum=0,
  )
  decay_factor: float = hparam(
    0.1,
    "The factor of decay_rounds.",
    minimum=0,
    exclusive_minimum=True,
    maximum=1,
  )

  @property
  def has_schedule(self) -> bool:
    """Whether the learning rate depends on the round."""
    return bool(self.cosine_rounds or self.decay_rounds)

  def check_together(self) -> None:
    """Refuses two schedules, and a factor without its schedule."""
    super().check_together()
    if self.cosine_rounds and self.decay_rounds:
      raise ValueError(
        f"decay_rounds={self.decay_rounds} is not allowed with cosine_rounds="
        f"{self.cosine_rounds}: a learning rate has one schedule"
      )
    default = LocalHParams.__dataclass_fields__["decay_factor"].default
    if not self.decay_rounds and self.decay_factor != default:
      raise ValueError(
        f"decay_factor={self.decay_factor} is not allowed without decay_rounds,"
        " after which the learning rate is multiplied by it"
      )
