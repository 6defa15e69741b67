"""Hooks of the documentation site.

They adapt the links of the first page, which is the repository's README, and
add a page for each package, with the docstrings of its modules.
"""

import pathlib

from mkdocs.structure import files as files_lib

_ROOT = pathlib.Path(__file__).parents[1]
_PACKAGE = "tff_shift"


def on_page_markdown(markdown, *, page, **_):
  """Converts links within the repository to links within the site."""
  if "/" not in page.file.src_uri:
    # Pages of the repository's root link to docs/, pages of docs/ to ../; in
    # the site both are in one folder.
    for here, there in (
      ("](docs/", "]("),
      ("](../", "]("),
      ("](README.md", "](index.md"),
    ):
      markdown = markdown.replace(here, there)
    return markdown
  if page.file.src_uri.startswith("results/"):
    return markdown.replace("](../docs/", "](../")
  return markdown


def on_files(files, *, config):
  """Adds a page for each package."""
  for folder in sorted((_ROOT / _PACKAGE).iterdir()):
    if (folder / "__init__.py").exists():
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
