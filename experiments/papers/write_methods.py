"""Writes `docs/reference/methods.md` from the files of the algorithms.

The page is made from the algorithms' docstrings, `SCENARIOS` and
`AGGREGATION_REQUIREMENTS`, and from `peers.toml`.

Run `python -m experiments.papers.write_methods`, or `make index`. With
`--check` nothing is written, and the exit code is 1 if the page is out of date.
"""

import functools
import inspect
import pathlib
import re
import sys
import tomllib
import types
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from experiments.papers import generated_page
from tff_shift import algorithms
from tff_shift import execution  # noqa: F401  Lets TFF exit cleanly.
from tff_shift._util import index
from tff_shift.learning.aggregators import aggregator_hparams
from tff_shift.learning.aggregators import factories

ROOT = index.FOLDER.parent
PEERS = pathlib.Path(__file__).parent / "peers.toml"
PAGE = "docs/reference/methods.md"

_HEAD = """# Methods

For readers who look for a method, its paper, or the values that it sends: all
{number} methods. The name of a method is the value of `--algorithm`, and its
file is in [tff_shift/algorithms](../../tff_shift/algorithms). The file's
docstring has the equations and, under "Choices:", the decisions where a paper
is silent or contradicts itself. `make index` writes this page from these files.

## Scenarios

{scenarios}
## Papers

"Also in" links to the method's file in {libraries}, as read on {read}; it is
absent where no such file was found.

| name | method |
| --- | --- |
"""

_CLIENTS = """
## Clients

The values that a client sends in a round, the personal values that it keeps,
and the aggregators that a method supports. [What leaves a
client](../explanation/privacy.md) adds evaluations, [choose an
aggregator](../how_to/aggregate.md) the aggregators. `robust`, `secure` and
`compressed` have their default clipping.

| name | in a round |
| --- | --- |
"""

# How a link in a docstring becomes an address.
_ADDRESSES = {
  "arXiv": "https://arxiv.org/abs/",
  "doi": "https://doi.org/",
  "openreview": "https://openreview.net/forum?id=",
}
_LINK = re.compile(r"(?P<kind>arXiv|doi|openreview|https):(?P<rest>\S+)")
# Title (authors; venue and year, link).
_PAPER = re.compile(
  r"(?P<title>[^()]+) \((?P<authors>[^();]+); (?P<rest>[^()]+)\)"
)
_NO_PAPER = "No paper of its own. "
_LEAVES = "What leaves a client: "


class Paper(NamedTuple):
  """A paper as a docstring names it.

  Attributes:
    title: Its title.
    authors: Its authors.
    venue: Venue and year.
    address: Its address in the web; empty: none is known.
  """

  title: str
  authors: str
  venue: str
  address: str


class Method(NamedTuple):
  """What the tables have of an algorithm.

  Attributes:
    name: The value of `--algorithm`.
    title: The name in the paper's spelling.
    summary: The method in a few words.
    papers: Its papers, the first one first.
    scenarios: The scenarios that it supports.
    leaves: What leaves a client.
    stays: What is personal.
    aggregators: The aggregators that it supports.
    refused: Why each of the others is refused.
    no_aggregation: Why nothing is aggregated; empty: something is.
  """

  name: str
  title: str
  summary: str
  papers: tuple[Paper, ...]
  scenarios: tuple[str, ...]
  leaves: str
  stays: str
  aggregators: tuple[str, ...]
  refused: Mapping[str, str]
  no_aggregation: str


def _address(text: str) -> str:
  """Returns the address of the link in a text; empty without a link."""
  found = _LINK.search(text)
  if not found:
    return ""
  return _ADDRESSES.get(found["kind"], "https:") + found["rest"]


def papers(paragraph: str) -> tuple[Paper, ...]:
  """Returns the papers of a method.

  Args:
    paragraph: The second paragraph of the docstring: `Title (authors; venue
      year, link)`, and further papers after "and".

  Returns:
    The papers. None if the paragraph says that there is no own paper.

  Raises:
    ValueError: If the paragraph has another form.
  """
  text = " ".join(paragraph.split())
  if text.startswith(_NO_PAPER):
    return ()
  found = []
  while match := _PAPER.match(text):
    venue = _LINK.sub("", match["rest"]).strip(" ,")
    found.append(
      Paper(match["title"], match["authors"], venue, _address(match["rest"]))
    )
    text = text[match.end() :]
    if not text.startswith(", and "):
      return tuple(found)
    text = text.removeprefix(", and ")
  raise ValueError(
    "the second paragraph must start with 'Title (authors; venue year, link)'"
    f" or with {_NO_PAPER.strip()!r}; it is {paragraph!r}"
  )


def clients(docstring: str) -> tuple[str, str]:
  """Returns what leaves a client, and what stays.

  Args:
    docstring: The docstring of an algorithm. It has one paragraph that begins
      with "What leaves a client: "; its sentences with "stay" or "stays" are
      about what is personal.
  """
  found = [each for each in docstring.split("\n\n") if each.startswith(_LEAVES)]
  if len(found) != 1:
    raise ValueError(
      f"there must be one paragraph that starts with {_LEAVES.strip()!r};"
      f" there are {len(found)}"
    )
  text = " ".join(found[0].removeprefix(_LEAVES).split())
  leaves, stays = [], []
  for sentence in re.split(r"(?<=\.) ", text[0].upper() + text[1:]):
    is_personal = re.search(r"\bstays?\b", sentence)
    (stays if is_personal else leaves).append(sentence)
  return " ".join(leaves), " ".join(stays)


@functools.cache
def _traits() -> Mapping[str, factories.Traits]:
  """Returns the traits of each aggregator."""
  return {
    name: factories.build(name, clients_per_round=100).traits
    for name in aggregator_hparams.NAMES
  }


def describe(name: str, module: types.ModuleType) -> Method:
  """Returns the entry of an algorithm.

  Args:
    name: The algorithm's name.
    module: Its module.

  Raises:
    ValueError: If its docstring lacks a part; one line with the name.
  """
  docstring = inspect.getdoc(module) or ""
  try:
    first, second = docstring.split("\n\n")[:2]
    title, colon, summary = first.partition(": ")
    if not colon:
      raise ValueError(
        "the first line must be 'Name: the method in few words.'"
      )
    of_papers = papers(second)
    leaves, stays = clients(docstring)
  except ValueError as error:
    raise ValueError(f"tff_shift/algorithms/{name}.py: {error}") from error
  requirements = getattr(
    module, "AGGREGATION_REQUIREMENTS", factories.NO_REQUIREMENTS
  )
  refusals = {
    aggregator: factories.refusal(requirements, traits)
    for aggregator, traits in _traits().items()
  }
  return Method(
    name=name,
    title=title,
    summary=summary,
    papers=of_papers,
    scenarios=tuple(module.SCENARIOS),
    leaves=leaves,
    stays=stays,
    aggregators=tuple(each for each in refusals if not refusals[each]),
    refused={each: reason for each, reason in refusals.items() if reason},
    no_aggregation=requirements.no_aggregation,
  )


def all_methods() -> list[Method]:
  """Imports the package's algorithms and returns their entries."""
  return [describe(name, algorithms.get(name)) for name in algorithms.names()]


def _row(*cells: str) -> str:
  escaped = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
  return "| " + " | ".join(escaped) + " |\n"


def _code(names: Iterable[str]) -> str:
  return ", ".join(f"`{name}`" for name in names)


def _linked(text: str, address: str) -> str:
  return f"[{text}]({address})" if address else text


def _of_papers(method: Method) -> str:
  return "; ".join(
    f"{_linked(each.title, each.address)} ({each.authors}; {each.venue})"
    for each in method.papers
  )


def _title_of(scenario: str) -> str:
  return scenario.replace("_", " ")


def _other_libraries(method: Method, peers: Mapping[str, Any]) -> str:
  return ", ".join(
    _linked(
      peer["name"],
      f"{peer['repository']}/blob/{peer['commit']}/{peer['files'][method.name]}",
    )
    for peer in peers["peers"]
    if method.name in peer["files"]
  )


def _aggregators(method: Method) -> str:
  """Returns the aggregators that a method supports, and why not others."""
  if method.no_aggregation:
    return f"none: {method.no_aggregation}"
  if not method.refused:
    return "all"
  by_reason = {}
  for name, reason in method.refused.items():
    by_reason.setdefault(reason, []).append(name)
  return "; ".join(
    [_code(method.aggregators)]
    + [f"not {_code(names)}: {why}" for why, names in by_reason.items()]
  )


def _scenarios(methods: Sequence[Method]) -> str:
  """Returns a list of the scenarios with their methods."""
  names = sorted({name for method in methods for name in method.scenarios})
  lines = []
  for scenario in names:
    members = [m.name for m in methods if scenario in m.scenarios]
    link = _linked(_title_of(scenario), f"../explanation/{scenario}.md")
    lines.append(f"- {link} ({len(members)}): {_code(members)}\n")
  return "".join(lines)


def page(methods: Sequence[Method], peers: Mapping[str, Any]) -> str:
  """Returns the text of `docs/reference/methods.md`.

  Two columns, so that a table fits on a telephone.
  """
  libraries = [
    _linked(peer["name"], peer["repository"]) for peer in peers["peers"]
  ]
  lines = [
    _HEAD.format(
      number=len(methods),
      scenarios=_scenarios(methods),
      libraries=f"{', '.join(libraries[:-1])} and {libraries[-1]}",
      read=peers["read"],
    )
  ]
  for method in methods:
    others = _other_libraries(method, peers)
    cell = [
      f"{method.title}: {method.summary}",
      _of_papers(method),
      f"Also in {others}" if others else "",
    ]
    lines.append(_row(f"`{method.name}`", "<br>".join(filter(None, cell))))
  lines.append(_CLIENTS)
  for method in methods:
    cell = [
      f"Sent: {method.leaves}",
      f"Kept: {method.stays}" if method.stays else "",
      f"Aggregators: {_aggregators(method)}",
    ]
    lines.append(_row(f"`{method.name}`", "<br>".join(filter(None, cell))))
  return "".join(lines)


def text() -> str:
  """Returns the up-to-date page."""
  return page(all_methods(), tomllib.loads(PEERS.read_text(encoding="utf-8")))


def main(arguments: Sequence[str], root: pathlib.Path = ROOT) -> int:
  """Writes or checks the page of a checkout; see `generated_page.run`."""
  return generated_page.run(root / PAGE, text, arguments)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
