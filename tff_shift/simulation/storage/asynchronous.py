"""Calls of TFF's asynchronous program API from synchronous code."""

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
  """Runs a coroutine, returns its result and raises its exceptions."""
  # In a separate thread: `asyncio.run` fails in a running event loop, as in
  # notebooks.
  with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
    return pool.submit(asyncio.run, coroutine).result()
