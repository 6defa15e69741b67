"""Suppresses log messages of libraries that users cannot act on.

Choices:
  * Suppressed are messages that users cannot act on: deprecations of
    tensorflow-datasets that it uses itself, and the traceback of an unreadable
    `fingerprint.pb`, on which no prediction depends.
"""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def without(name: str, text: str) -> Iterator[None]:
  """Suppresses messages of a logger during the `with` block.

  Args:
    name: The name of the logger.
    text: Suppresses messages that contain this text.
  """

  def is_other(record: logging.LogRecord) -> bool:
    return text not in record.getMessage()

  logger = logging.getLogger(name)
  logger.addFilter(is_other)
  try:
    yield
  finally:
    logger.removeFilter(is_other)
