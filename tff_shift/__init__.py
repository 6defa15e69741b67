"""Federated learning under distribution shift, as TFF computations."""

import importlib.util

if importlib.util.find_spec("tensorflow_federated") is None:
  # No installer can be told to bring it: TFF asks for a release of jaxlib that
  # is gone. setup.py has all else that it needs.
  raise ImportError(
    "tff_shift: TensorFlow Federated is missing; install it with `pip install"
    " --no-deps tensorflow-federated==0.87.0` (without --no-deps pip looks for"
    " a release of jaxlib that is gone)"
  )
