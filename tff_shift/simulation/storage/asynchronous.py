"""Calls of TFF's asynchronous program API from code that is not."""

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
  """Runs a coroutine to its end and returns its result.

  Args:
    coroutine: The coroutine; what it raises is raised here.
  """
  # In a thread of its own: `asyncio.run` refuses to run where an event loop
  # runs already, as it does in notebooks.
  with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
    return pool.submit(asyncio.run, coroutine).result()
