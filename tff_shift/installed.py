"""Whether TensorFlow Federated is there, and how it is brought if it is not."""

import importlib.util


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
