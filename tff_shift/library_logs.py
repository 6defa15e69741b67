"""What libraries log and nobody can do anything about."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def without(name: str, text: str) -> Iterator[None]:
  """Keeps messages out of the log within a `with`.

  Args:
    name: The name of the logger that they are given to.
    text: What is in each of them.
  """

  def is_other(record: logging.LogRecord) -> bool:
    return text not in record.getMessage()

  logger = logging.getLogger(name)
  logger.addFilter(is_other)
  try:
    yield
  finally:
    logger.removeFilter(is_other)
