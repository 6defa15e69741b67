"""Whether packages are there, and how they are brought if they are not."""

import importlib
import importlib.util
import types


def require_tff() -> None:
  """Raises an ImportError of one line where TFF is missing.

  No installer can be told to bring it: TFF asks for a release of jaxlib that is
  gone. What this package requires has all else that TFF needs.
  """
  if importlib.util.find_spec("tensorflow_federated") is None:
    raise ImportError(
      "tff_shift: TensorFlow Federated is missing; install it with `pip install"
      " --no-deps tensorflow-federated==0.87.0` (without --no-deps pip looks"
      " for a release of jaxlib that is gone)"
    )


def require_text(name: str) -> types.ModuleType:
  """Imports a module of the extra `text`, which need not be installed.

  Args:
    name: The module.

  Returns:
    The module.

  Raises:
    ValueError: If it is missing; one line that says what brings it.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ValueError(
      f"the package {name.partition('.')[0]} is missing; install the extra"
      ' `text`: pip install "tff_shift[text]", or pip install --no-deps'
      " tokenizers==0.19.1 safetensors==0.5.3"
    ) from error
