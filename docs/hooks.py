"""What mkdocs does with this folder beyond its pages.

The first page is the repository's README, whose links start at its root; and
each package has a page that is made of the docstrings of its modules.
"""

import pathlib

from mkdocs.structure import files as files_lib

_ROOT = pathlib.Path(__file__).parents[1]
_PACKAGE = "tff_shift"


def on_page_markdown(markdown, *, page, **_):
  """Turns links as the repository has them into links within the site."""
  if "/" not in page.file.src_uri:
    # Pages of the repository's root, and what lies beside this folder there
    # and in it here.
    return markdown.replace("](docs/", "](").replace("](../", "](")
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
  """Returns the page of a package: its own docstring, then its modules."""
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
