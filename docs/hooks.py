"""Hooks of the documentation site.

They adapt links between the files of the repository, add a page for each
package with the docstrings of its modules, and one with the choices of all
files, to which links to these files lead. They check what is built: pictures
have a text for those who do not see them, search needs no server, pages load
nothing from elsewhere, and there is a dark mode. A fault is a warning, which
ends `mkdocs build --strict`.
"""

import html.parser
import logging
import os.path
import pathlib
import re

from mkdocs import plugins
from mkdocs.structure import files as files_lib

from experiments.papers import choices

_ROOT = pathlib.Path(__file__).parents[1]
_PACKAGE = "tff_shift"
_CHOICES = "reference/choices.md"
_CHOICES_HEAD = """# Choices

For readers who compare results with a paper, or ask why a part is as it is: the
decisions where a paper is silent or contradicts itself, and those about the
package. Each section is in the docstring of its file. [Build
notes](../BUILD_NOTES.md) are about the whole.
"""
# A link of Markdown: ](target#anchor) without a scheme.
_LINK = re.compile(r"\]\((?![a-z+]+:|#)([^)\s#]+)((?:#[^)\s]*)?)\)")
_LOG = logging.getLogger("mkdocs.hooks.tff_shift")


def place_in_repository(source):
  """Returns where the file of a page is, relative to the repository's root.

  Args:
    source: The page's path below `docs`, where some pages are links.
  """
  return os.path.relpath((_ROOT / "docs" / source).resolve(), _ROOT)


def place_in_site(path):
  """Returns where a file of the repository is in the site; None: nowhere.

  Args:
    path: The file's path relative to the repository's root. A file with choices
      is in the page of choices.
  """
  # The site has no README: it starts with the index.
  if path == "README.md":
    return "index.md"
  if path.startswith("docs/"):
    return path.removeprefix("docs/")
  if path == f"{_PACKAGE}/algorithms" or path in choices.of_all():
    return _CHOICES
  return path if (_ROOT / "docs" / path).exists() else None


def links_in_site(markdown, source):
  """Returns a page whose links between files are links between pages.

  Args:
    markdown: The page, with links that are right in the repository.
    source: The page's path below `docs`.
  """
  folder = os.path.dirname(place_in_repository(source))

  def link(match):
    path = os.path.normpath(os.path.join(folder, match[1]))
    there = place_in_site(path)
    if there is None:
      return match[0]
    relative = os.path.relpath(there, os.path.dirname(source) or ".")
    anchor = f"#{_anchor(path)}" if path in choices.of_all() else match[2]
    return f"]({relative}{anchor})"

  return _LINK.sub(link, markdown)


def _anchor(path):
  """Returns the anchor of a file in the page of choices."""
  return re.sub("[/.]", "", path)


def _choices():
  """Returns the page of choices."""
  return "\n\n".join(
    [_CHOICES_HEAD]
    + [f"## `{path}`\n\n{text}" for path, text in choices.of_all().items()]
  )


class _Page(html.parser.HTMLParser):
  """Collects what a page shows and loads."""

  def __init__(self):
    super().__init__()
    self.without_text = []
    self.loaded = []

  def handle_starttag(self, tag, attrs):
    found = dict(attrs)
    if tag == "img" and not (found.get("alt") or "").strip():
      self.without_text.append(found.get("src"))
    source = found.get("src")
    if tag == "link" and found.get("rel") != "canonical":
      source = found.get("href")
    if source and re.match(r"(https?:)?//", source):
      self.loaded.append(source)


def faults_of_page(text):
  """Returns what is wrong with the HTML of a page, a line each."""
  page = _Page()
  page.feed(text)
  return [f"picture without alt text: {each}" for each in page.without_text] + [
    f"loaded from elsewhere: {each}" for each in page.loaded
  ]


def faults_of_site(folder):
  """Returns what is wrong with a site, a line each.

  Args:
    folder: The folder of the built site.
  """
  found = []
  for path in sorted(folder.rglob("*.html")):
    found += [
      f"{path.relative_to(folder)}: {each}"
      for each in faults_of_page(path.read_text(encoding="utf-8"))
    ]
  index = folder / "search" / "search_index.js"
  if not index.is_file() or not index.read_text("utf-8").startswith("var "):
    found.append("search/search_index.js is missing: search needs a server")
  home = (folder / "index.html").read_text(encoding="utf-8")
  if 'data-md-color-scheme="slate"' not in home:
    found.append("index.html has no dark mode")
  if "javascripts/iframe-worker.js" not in home:
    found.append("index.html does not load the search without a server")
  return found


def on_page_markdown(markdown, *, page, **_):
  """Converts links within the repository to links within the site."""
  return links_in_site(markdown, page.file.src_uri)


def on_files(files, *, config):
  """Adds a page for each package, and that of choices."""
  files.append(files_lib.File.generated(config, _CHOICES, content=_choices()))
  for folder in sorted((_ROOT / _PACKAGE).iterdir()):
    if folder.name[0] != "_" and (folder / "__init__.py").exists():
      files.append(
        files_lib.File.generated(
          config, f"api/{folder.name}.md", content=_page(folder)
        )
      )
  return files


def _page(package):
  """Returns the page of a package: its docstring, then its modules."""
  modules = [
    ".".join(path.relative_to(_ROOT).with_suffix("").parts)
    for path in sorted(package.rglob("*.py"))
    if path.name != "__init__.py"
  ]
  name = f"{_PACKAGE}.{package.name}"
  return "\n\n".join(
    [f"# {name}", f"::: {name}\n    options:\n      show_root_heading: false"]
    + [f"::: {module}" for module in modules]
  )


# After the offline plugin, whose priority is -100.
@plugins.event_priority(-200)
def on_post_build(*, config):
  """Warns of what is wrong with the site."""
  for fault in faults_of_site(pathlib.Path(config.site_dir)):
    _LOG.warning(fault)
