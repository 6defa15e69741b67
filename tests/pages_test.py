"""Pages of the documentation and of results.

Of the documentation, their first lines and their blocks of code.

A fenced block of Python runs, after the blocks above it, as one program. An
indented block holds commands. Comments of a page are instructions:

    <!-- setup                lines of Python that readers do not see, such as
                              their own objects, and what the page promises
    <!-- run by: PATH -->     the next block is run by this file
    <!-- not run: REASON -->  the next block is not run

A block with a title is a file that commands and later blocks use.

Of results, how much prose a page has, and what makes its tables again.
"""

import functools
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_FOLDERS = ("explanation", "how_to", "reference", "tutorials")
_PAGES = [
  pytest.param(page, id=f"{folder}/{page.stem}")
  for folder in _FOLDERS
  for page in sorted((_ROOT / "docs" / folder).glob("*.md"))
  if page.stem != "methods"  # `make index` writes it.
]
_PART = re.compile(
  r"^<!-- (?P<comment>[^>]*?) ?-->\n"
  r'|^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<fenced>.*?)^```\n'
  r"|(?<=\n\n)(?P<indented>(?: {4}[^\n]*\n|\n(?= {4}))+)",
  re.MULTILINE | re.DOTALL,
)
_WIDTH = 72
# end_to_end/documented_commands_test.py checks the flags of these binaries.
_SCENARIOS = (
  "evolving",
  "online_adaptation",
  "guidance",
  "dynamic_personalization",
)


class Block(NamedTuple):
  """A block of code.

  Attributes:
    code: Its lines.
    language: `python`, `text`, `setup`, ...; `commands` if it is indented.
    title: The file that it is.
    note: The comment above it.
    line: The number of its first line, from 0.
  """

  code: str
  language: str
  title: str | None
  note: str
  line: int


def blocks(page):
  """Returns the blocks of a page, in order."""
  text = page.read_text(encoding="utf-8")
  result, note, end = [], "", 0
  for part in _PART.finditer(text):
    if text[end : part.start()].strip():
      note = ""
    end = part.end()
    comment = part["comment"] or ""
    if comment.startswith("setup\n"):
      language, code, start = "setup", comment[6:] + "\n", part.start("comment")
      line = text.count("\n", 0, start) + 1
      result.append(Block(code, language, None, "", line))
    elif comment:
      note = comment
    elif part["indented"]:
      code = re.sub("^ {4}", "", part["indented"], flags=re.MULTILINE)
      result.append(Block(code, "commands", None, note, 0))
    else:
      line = text.count("\n", 0, part.start("fenced"))
      language, title = part["language"], part["title"]
      result.append(Block(part["fenced"], language, title, note, line))
  return result


def program(page):
  """Returns the Python of a page; lines have the numbers of the page."""
  lines = []
  for block in blocks(page):
    is_python = block.language in ("python", "setup")
    if is_python and not block.title and not block.note:
      lines += [""] * (block.line - len(lines)) + block.code.splitlines()
  return "\n".join(lines)


@pytest.mark.parametrize("page", _PAGES)
def test_readers_are_named_and_blocks_are_narrow_and_explained(page):
  _, _, text = page.read_text(encoding="utf-8").partition("\n\n")
  assert text.startswith("For ")
  for block in blocks(page):
    if block.language != "setup":
      assert [x for x in block.code.splitlines() if len(x) > _WIDTH] == []
    kind, _, rest = block.note.partition(": ")
    assert kind in ("", "run by", "not run")
    if kind == "run by":
      assert page.stem in (_ROOT / rest).read_text(encoding="utf-8")


def commands(page):
  """Yields the commands of a page that have no note."""
  titles = [block.title for block in blocks(page)]
  for block in blocks(page):
    if block.language == "commands" and not block.note:
      for command in block.code.replace("\\\n", " ").splitlines():
        yield command.removeprefix(".venv/bin/"), titles


@functools.cache
def sources(path):
  """Returns the code that may define the flags of a module."""
  shared = ("tff_shift/command_line", "tff_shift/binaries", "tff_shift/testing")
  files = [*path.parent.glob("*.py")]
  for folder in shared:
    files += (_ROOT / folder).rglob("*.py")
  return "\n".join(file.read_text(encoding="utf-8") for file in files)


@pytest.mark.parametrize("page", _PAGES)
def test_commands_name_targets_modules_and_files(page):
  makefile = (_ROOT / "Makefile").read_text(encoding="utf-8")
  for command, titles in commands(page):
    if target := re.match(r"make ([\w-]+)", command):
      assert re.search(f"^{target[1]}:", makefile, re.MULTILINE)
    elif script := re.fullmatch(r"python ([\w/]+\.py)", command):
      assert pathlib.Path(script[1]).name in titles
    else:
      module = re.match(r"python -m ((?:\w+\.)*\w+)", command)
      assert module, command
      path = (_ROOT / module[1].replace(".", "/")).with_suffix(".py")
      assert path.exists() or (path.with_suffix("") / "__main__.py").exists()
      if path.stem not in _SCENARIOS:
        for flag in re.findall(r" --(?:no)?(\w+)", command):
          assert re.search(rf"\b{flag}\b", sources(path)), flag


def run(path):
  subprocess.run(
    [sys.executable, path],
    cwd=path.parent,
    env={**os.environ, "PYTHONPATH": str(_ROOT)},
    timeout=600,
    check=True,
  )


@pytest.mark.long
@pytest.mark.parametrize(
  "page", [param for param in _PAGES if program(param.values[0])]
)
def test_code_runs(page, tmp_path):
  for block in blocks(page):
    if block.title:
      (tmp_path / block.title).write_text(block.code, encoding="utf-8")
  # Lines of the page, so that an error names the line of the page.
  path = tmp_path / f"{page.stem}_page.py"
  path.write_text(program(page), encoding="utf-8")
  run(path)


@pytest.mark.long
@pytest.mark.parametrize(
  "block",
  [
    pytest.param(block, id=block.title)
    for param in _PAGES
    for block in blocks(param.values[0])
    if block.title and not block.note
  ],
)
def test_files_run(block, tmp_path):
  path = tmp_path / block.title
  path.write_text(block.code, encoding="utf-8")
  run(path)


_RESULTS = [
  pytest.param(page, id=page.stem)
  for page in sorted((_ROOT / "results").glob("*.md"))
]
_MOST_LINES, _MOST_CHARACTERS = 110, 6_000
_GENERATED = re.compile(r"<!-- table: .*?<!-- end of table -->\n", re.DOTALL)
_COMMAND = re.compile(r"python -m [\w.]+|\bmake [a-z-]+|\btests/[\w/]+\.py")
# A command that only an earlier commit knows.
_GONE = re.compile(r"^    # commit \w+;.*\n(?:    .+\n)+", re.MULTILINE)
_ONCE = re.compile(r"Measured once\b[^.]*; nothing here makes it\s+again")


def prose(text):
  """Returns the lines outside tables and blocks of code."""
  text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
  return [
    line
    for line in _GENERATED.sub("", text).splitlines()
    if line.strip() and not line.startswith(("|", "    "))
  ]


def unexplained_tables(text):
  """Returns the headings whose tables have nothing that makes them again.

  A program writes the table, or the section or the start of the page names a
  command, or the first line of one of them says that nothing makes it again.
  """
  sections = [
    section.partition("\n\n")
    for section in re.split(r"^(?=##+ )", text, flags=re.MULTILINE)
  ]
  _, _, start = sections[0]
  headings = []
  for heading, _, body in sections:
    is_explained = any(
      _COMMAND.search(_GONE.sub("", part)) or _ONCE.match(part)
      for part in (start, body)
    )
    has_table = re.search(r"^\|", _GENERATED.sub("", body), re.MULTILINE)
    if has_table and not is_explained:
      headings.append(heading)
  return headings


@pytest.mark.parametrize("page", _RESULTS)
def test_results_have_two_screens_of_prose_and_explained_tables(page):
  text = page.read_text(encoding="utf-8")
  lines = prose(text)
  assert len(lines) <= _MOST_LINES
  assert sum(map(len, lines)) <= _MOST_CHARACTERS
  assert unexplained_tables(text) == []


@pytest.mark.parametrize(
  ("before", "headings"),
  [
    ("Ten seeds:", ["## A"]),
    ("    # commit abc1234; the script is gone\n    python -m b.c", ["## A"]),
    ("    python -m b.c", []),
    ("Measured once, on a Monday; nothing here makes it again.", []),
  ],
)
def test_tables_without_a_command_are_named(before, headings):
  table = "| a |\n| --- |\n"
  text = f"# Page\n\nStart.\n\n## A\n\n{before}\n\n{table}\n## B\n\nEnd.\n"
  assert unexplained_tables(text) == headings
  generated = f"<!-- table: archive=a -->\n{table}<!-- end of table -->\n"
  assert unexplained_tables(text.replace(table, generated)) == []
  assert prose(text.replace(table, generated)) == [
    line
    for line in text.splitlines()
    if line and not line.startswith(("|", " "))
  ]
