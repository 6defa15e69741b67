"""Renders Markdown notes as HTML for a page."""

import re

import markdown
import markupsafe
from markdown import treeprocessors

# Headings in notes are below the heading of the note, which has level 3.
_LEVEL = 4


class _OfAPage(treeprocessors.Treeprocessor):
  """Removes relative links and images, and lowers headings.

  Relative links do not work because the page is in another folder.
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
        # Pages are self-contained.
        element.tag, element.text = "span", element.get("alt", "")
        element.attrib.clear()


def to_html(text: str) -> markupsafe.Markup:
  """Renders Markdown with tables; escapes HTML in it."""
  converter = markdown.Markdown(extensions=["tables", "fenced_code"])
  converter.preprocessors.deregister("html_block")
  converter.inlinePatterns.deregister("html")
  converter.treeprocessors.register(_OfAPage(converter), "of_a_page", 0)
  return markupsafe.Markup(converter.convert(text))
