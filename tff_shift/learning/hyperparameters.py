"""Hyper-parameters: frozen dataclasses whose fields know their limits.

An algorithm's `HParams` lists what it can be told, with meaning and limits. The
command lines make their flags from it, and `validate` refuses bad values with
one line that names the field and the allowed values.
"""

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from tff_shift import arguments

# Steps, examples and rounds are counted in int32, in sums and products of
# several numbers. Beyond it a run looks like one that hangs.
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
) -> Any:
  """Declares a field of a dataclass of hyper-parameters.

  Args:
    default: The default value; its type is the type of the field.
    help: What the field means, with its meaning at the limits.
    choices: The allowed values, for strings.
    minimum: The smallest allowed value.
    maximum: The largest allowed value.
    exclusive_minimum: Whether `minimum` itself is refused.
    or_zero: Whether 0 is allowed below `minimum`.

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
    },
  )


def variant_hparam() -> Any:
  """Declares the hyper-parameter `variant`.

  The program of the FedDRM paper compares with methods that are not those of
  their papers; its tables are to be held against these.
  """
  return hparam(
    "published",
    "published: the method of its paper; program: what the program of the"
    " FedDRM paper runs under its name.",
    choices=("published", "program"),
  )


def describe_limits(field: dataclasses.Field) -> str:
  """Says in words which values a field allows."""
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
  told = " ".join([kind, " and ".join(limits)]).strip()
  return f"{told}, or 0" if field.metadata["or_zero"] else told


def _is_allowed(field: dataclasses.Field, value: Any) -> bool:
  choices = field.metadata["choices"]
  if choices:
    return value in choices
  # True and False are integers to Python, and here only where they are meant.
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
  """Returns what is allowed where a graph cannot hold a value; else ""."""
  if isinstance(value, bool | str):
    return ""
  if isinstance(value, int) and isinstance(field.default, int):
    return "" if abs(value) <= _MOST else f"at most {_MOST}"
  return "" if arguments.is_float32(value) else arguments.FLOAT32


def validate(hparams: Any) -> None:
  """Checks every field of a dataclass of hyper-parameters.

  Args:
    hparams: Of a subclass of `HParams`.

  Raises:
    ValueError: If a value is not allowed; one line that names the field, the
      value and the allowed values. If `hparams` is something else.
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
  """Hyper-parameters; the fields of subclasses come from `hparam`.

  Scalars of NumPy become Python's own, for an int64 in a graph is no int32, and
  a negative zero becomes 0.
  """

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = arguments.as_python(getattr(self, field.name))
      if value == 0 and isinstance(value, float):
        value = 0.0  # Not -0.0, which results would tell apart.
      object.__setattr__(self, field.name, value)

  def check_together(self) -> None:
    """Refuses values that are allowed each by itself but not together.

    Raises:
      ValueError: If there are such; one line that names a field.
    """


def make_class(fields: Iterable[Mapping[str, Any]]) -> type[HParams]:
  """Makes a class of hyper-parameters from the declarations of its fields.

  Args:
    fields: For each field its `name` and the arguments of `hparam`.

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
  """Local training but for its learning rate, which may be computed."""

  local_steps: int = hparam(
    5,
    "Local training iterations per round (the papers' tau). An iteration"
    " visits every source domain that a client has once with one batch; on data"
    " without domains it is one gradient step.",
    minimum=1,
  )
  local_epochs: int = hparam(
    0,
    "If above 0, replaces local_steps: as many iterations as pass that often"
    " over the client's examples, rounded up.",
    minimum=0,
  )
  batch_size: int = hparam(32, "Examples in a batch.", minimum=1)
  optimizer: str = hparam(
    "sgd",
    "The clients' optimizer; new at every round.",
    choices=("sgd", "adam", "adamw"),
  )
  momentum: float = hparam(
    0.0,
    "Momentum of sgd; 0 is plain gradient descent.",
    minimum=0,
    maximum=1,
  )
  weight_decay: float = hparam(
    0.0,
    "Added to the gradient as weight_decay * weight (sgd, adam), or decoupled"
    " from it (adamw); 0 is none.",
    minimum=0,
  )
  straggler_ratio: float = hparam(
    0.0,
    "Probability that a client trains only a random number of iterations,"
    " uniform in 1..tau (Table 6 of the FedEvolve paper); 0 is never.",
    minimum=0,
    maximum=1,
  )
  client_weighting: str = hparam(
    "uniform",
    "Weight of a client in the server's mean: uniform, as in Algorithms 3 and"
    " 4 of the FedEvolve paper, or num_examples.",
    choices=("uniform", "num_examples"),
  )
  personal_norm: str = hparam(
    "none",
    "What of batch normalisation is a client's own: none (FedAvg); statistics,"
    " its running means and variances (SiloBN); all, scale and shift as well"
    " (FedBN).",
    choices=("none", "statistics", "all"),
  )

  def check_together(self) -> None:
    """See `HParams`."""
    if not self.local_epochs and self.local_steps * self.batch_size >= 2**31:
      raise ValueError(
        f"local_steps={self.local_steps} is not allowed with batch_size="
        f"{self.batch_size}: their product, the examples that a client draws in"
        f" a round, must be below {2**31}"
      )


@dataclasses.dataclass(frozen=True)
class LocalHParams(LocalWorkHParams):
  """Local training at a learning rate that is given."""

  learning_rate: float = hparam(
    0.05, "The clients' learning rate.", minimum=0, exclusive_minimum=True
  )
  cosine_rounds: int = hparam(
    0,
    "If above 0, the rate falls from round to round along a half cosine and"
    " is 0 after this many rounds; 0: the rate stays.",
    minimum=0,
  )
