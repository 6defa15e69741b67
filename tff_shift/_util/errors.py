"""Errors and warnings that the binaries report in one line.

Does not import TensorFlow.
"""


class DivergedError(RuntimeError):
  """The updates of all clients of a round are not finite.

  Attributes:
    algorithm: The name of the algorithm.
    round_num: The round, starting at 1.
  """

  def __init__(
    self,
    algorithm: str,
    round_num: int,
    num_clients: int,
    what_may_help: str = "a smaller learning rate may help",
  ):
    super().__init__(
      f"{algorithm} diverged in round {round_num}: the updates of all"
      f" {num_clients} clients are not finite; {what_may_help}"
    )
    self.algorithm = algorithm
    self.round_num = round_num


class PrivacyWarning(UserWarning):
  """A privacy guarantee is weak; the message is one line."""


class NoiseWarning(UserWarning):
  """Noise dominates client updates; the message is one line."""
