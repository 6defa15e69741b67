"""Notes in Markdown as HTML that is part of a page."""

import re

import markdown
import markupsafe
from markdown import treeprocessors

# A heading of notes is below that of its paragraph, which is of level 3.
_LEVEL = 4


class _OfAPage(treeprocessors.Treeprocessor):
  """Takes links away that lead nowhere from a page, and lowers headings.

  Links of notes start where the notes are, which the page is not.
  """

  def run(self, root):
    for element in root.iter():
      if element.tag == "a" and not re.match(
        r"https?://", element.get("href", "")
      ):
        element.tag = "span"
        element.attrib.clear()
      elif re.fullmatch(r"h[1-6]", element.tag):
        element.tag = f"h{min(6, int(element.tag[1]) + _LEVEL - 1)}"
      elif element.tag == "img":
        # A page asks nobody for anything.
        element.tag, element.text = "span", element.get("alt", "")
        element.attrib.clear()


def to_html(text: str) -> markupsafe.Markup:
  """Renders Markdown with tables; HTML in it is shown, not obeyed."""
  converter = markdown.Markdown(extensions=["tables", "fenced_code"])
  converter.preprocessors.deregister("html_block")
  converter.inlinePatterns.deregister("html")
  converter.treeprocessors.register(_OfAPage(converter), "of_a_page", 0)
  return markupsafe.Markup(converter.convert(text))
