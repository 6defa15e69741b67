"""Links, notes and pages of the documentation."""

import ast
import importlib.util
import os.path
import pathlib
import re
import shutil
import subprocess

import pytest

from experiments.papers import choices
from tests.fixtures import tables

_ROOT = pathlib.Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location(
  "documentation_hooks", _ROOT / "docs/hooks.py"
)
hooks = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(hooks)

_PAGE = "<html><body><p>text</p></body></html>"
_HOME = (
  '<script src="javascripts/iframe-worker.js"></script>'
  '<body><input data-md-color-scheme="slate"></body>'
)


# What the shim needs of a browser: a page, and frames with global objects.
_BROWSER = """
const fs = require("fs"), vm = require("vm");
const folder = process.argv[2];
const late = (work) => setTimeout(work, 5);
function inner() {
  const target = new EventTarget();
  const self = {MessageEvent, console};
  self.addEventListener = (name, work) => target.addEventListener(name, work);
  self.dispatchEvent = (event) => target.dispatchEvent(event);
  const load = (script) => {
    try {
      vm.runInContext(fs.readFileSync(new URL(script.src), "utf8"), self);
      script.onload();
    } catch (error) { script.onerror(error); }
  };
  const head = {append: (script) => late(() => load(script))};
  self.document = {createElement: () => ({}), head};
  return vm.createContext(self);
}
global.window = global;
global.location = {protocol: process.argv[3], href: `file://${folder}/index.html`};
global.Worker = class { constructor() { console.log("the browser's"); } };
global.document = {
  createElement: () => Object.assign(new EventTarget(), {remove() {}}),
  body: {append: (frame) => late(() => {
    frame.contentWindow = inner();
    frame.dispatchEvent(new Event("load"));
  })},
};
vm.runInThisContext(fs.readFileSync(process.argv[4], "utf8"));
const worker = new Worker(process.argv[5]);
if (worker.addEventListener) {
  worker.addEventListener("message", ({data}) => {
    console.log(data);
    // Only now has the worker loaded all scripts.
    if (data.startsWith("early")) worker.postMessage("late");
  });
  worker.addEventListener("error", () => console.log("error"));
  worker.postMessage("early");
}
"""

_WORKER = """
addEventListener("message", async ({data}) => {
  if (data === "early") await importScripts("file://FOLDER/other.js");
  postMessage(`${data} ${1 + two}`);
});
"""


def pages():
  for pattern in ("*.md", "docs/*/*.md", "results/**/*.md"):
    for path in _ROOT.glob(pattern):
      # Without the links to pages and folders of the root.
      if path.resolve() == path:
        yield path


def test_links_between_files_lead_somewhere():
  found = 0
  for path in pages():
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\((?![a-z+]+:|#)([^)\s#]+)", text):
      found += 1
      place = os.path.normpath(path.parent / target)
      assert os.path.exists(place), f"{path.relative_to(_ROOT)}: {target}"
  assert found > 200


def test_files_and_modules_that_pages_name_are_there():
  found = 0
  for path in pages():
    # Files of TFF's repository, and of earlier versions.
    if path.name in ("conformance.md", "CHANGELOG.md"):
      continue
    text = path.read_text(encoding="utf-8")
    # Commands of scripts that an earlier commit has.
    text = re.sub(r"    # commit \w+;.*\n(?:    .+\n)+", "", text)
    text = re.sub(r"`[^`]*` of commit \w+", "", text)
    folders = "tff_shift|tests|examples|benchmarks|experiments|docs|results"
    names = re.findall(
      rf"(?<![\w/.-])((?:{folders})/[\w/]+\.(?:py|toml|md|json|flags|xz))\b",
      text,
    )
    names += [
      f"{module.replace('.', '/')}.py"
      for module in re.findall(
        r"-m ((?:benchmarks|experiments)\.[\w.]+\w)", text
      )
    ]
    found += len(names)
    for name in names:
      assert (_ROOT / name).exists(), f"{path.relative_to(_ROOT)}: {name}"
  assert found > 100


def test_readme_is_short():
  assert len((_ROOT / "README.md").read_text().splitlines()) <= 120


def test_notes_are_short_and_code_names_their_sections():
  """BUILD_NOTES.md is about the whole; code may name its sections."""
  notes = _ROOT / "BUILD_NOTES.md"
  # Other decisions are in the docstrings of the files that they are about.
  assert notes.stat().st_size <= 30_000
  text = notes.read_text(encoding="utf-8")
  headings = re.findall(r"^#{2,3} (.*)$", text, re.MULTILINE)
  assert len(headings) == len(set(headings))
  named = 0
  for folder in ("tff_shift", "experiments", "examples", "benchmarks"):
    for path in (_ROOT / folder).rglob("*.py"):
      # The heading may be broken over two lines of a comment.
      text = re.sub(r"\n\s*(# )?", " ", path.read_text(encoding="utf-8"))
      for heading in re.findall(r'BUILD_NOTES(?:\.md)?, "([^"]+)"', text):
        named += 1
        assert heading in headings, f"{path}: {heading}"
  assert named


class TestChoices:
  """Decisions are in docstrings, and in a page of the site."""

  @pytest.mark.parametrize(
    "name, start",
    tables.cases(r"""
"shot"
    * The paper takes 15 epochs over the target set, in
"clustered_fl"
    Differences from the authors' program
"source"
"""),
  )
  def test_section_becomes_markdown(self, name, start):
    text = choices.of(f"tff_shift/algorithms/{name}.py")
    assert text.startswith(start) and bool(text) == bool(start)

  def test_every_section_of_a_docstring_is_read(self):
    paths = choices.of_all()
    for folder in ("tff_shift", "experiments"):
      for path in (_ROOT / folder).rglob("*.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        lines = [line.strip() for line in docstring.splitlines()]
        has_section = any(line.startswith("Choices") for line in lines)
        name = path.relative_to(_ROOT).as_posix()
        assert (name in paths) == has_section, name


@pytest.mark.parametrize(
  "source, link, expected",
  [
    ("index.md", "how_to/gpu.md#x", "how_to/gpu.md#x"),
    ("index.md", "../results/README.md", "results/README.md"),
    ("how_to/gpu.md", "../../results/gpu.md", "../results/gpu.md"),
    ("how_to/gpu.md", "../../README.md", "../index.md"),
    ("how_to/gpu.md", "resume.md", "resume.md"),
    (
      "results/evolving.md",
      "../docs/reference/data_sets.md",
      "../reference/data_sets.md",
    ),
    ("BUILD_NOTES.md", "docs/how_to/gpu.md", "how_to/gpu.md"),
    ("BUILD_NOTES.md", "tff_shift/algorithms", "reference/choices.md"),
    (
      "results/evolving.md",
      "../tff_shift/algorithms/fed_evp.py",
      "../reference/choices.md#tff_shiftalgorithmsfed_evppy",
    ),
    ("index.md", "https://arxiv.org/abs/1", "https://arxiv.org/abs/1"),
    ("index.md", "#here", "#here"),
  ],
)
def test_links_become_those_of_the_site(source, link, expected):
  text = f"[a\nb]({link}) and [c]({link})"
  assert hooks.links_in_site(text, source) == (
    f"[a\nb]({expected}) and [c]({expected})"
  )


class TestSite:
  def make(self, folder, home=_HOME, page=_PAGE):
    (folder / "index.html").write_text(home)
    (folder / "page.html").write_text(page)
    (folder / "search").mkdir()
    (folder / "search/search_index.js").write_text("var __index = {}")
    return folder

  @pytest.mark.parametrize(
    "tag, fault",
    tables.rows("""
<img src="x.png">
    picture without alt text: x.png
<img src="x.png" alt="">
    picture without alt text: x.png
<img src="x.png" alt=" ">
    picture without alt text: x.png
<script src="https://a.org/x.js"></script>
    loaded from elsewhere:
<link rel="stylesheet" href="//a.org/x.css">
    loaded from elsewhere:
<img src="http://a.org/x.png" alt="A picture">
    loaded from elsewhere:
<a href="https://a.org">a</a><link rel="canonical" href="//a.org">
"""),
  )
  def test_pages_have_texts_and_load_nothing_from_elsewhere(
    self, tmp_path, tag, fault
  ):
    faults = hooks.faults_of_site(self.make(tmp_path, page=tag))
    assert len(faults) == len(fault)
    for line, start in zip(faults, fault, strict=True):
      assert line.startswith(f"page.html: {start}")

  def test_search_that_needs_a_server(self, tmp_path):
    site = self.make(tmp_path)
    assert hooks.faults_of_site(site) == []
    (site / "search/search_index.js").unlink()
    (fault,) = hooks.faults_of_site(site)
    assert fault.endswith("search needs a server")

  def test_home_without_dark_mode_and_search(self, tmp_path):
    faults = hooks.faults_of_site(self.make(tmp_path, home=_PAGE))
    assert [fault.partition(" ")[0] for fault in faults] == ["index.html"] * 2


@pytest.mark.skipif(not shutil.which("node"), reason="there is no Node.js")
@pytest.mark.parametrize(
  "protocol, worker, printed",
  [
    ("file:", "worker.js", ["early 3", "late 3"]),
    ("file:", "missing.js", ["error"]),
    ("https:", "worker.js", ["the browser's"]),
  ],
)
def test_search_without_a_server(tmp_path, protocol, worker, printed):
  """`iframe-worker.js` in Node.js, with a small stand-in for a browser.

  The first message is sent before the worker's script is there. A missing
  script is an error; with a server, the browser's workers are used.
  """
  (tmp_path / "browser.js").write_text(_BROWSER)
  (tmp_path / "other.js").write_text("const two = 2;")
  (tmp_path / "worker.js").write_text(_WORKER.replace("FOLDER", str(tmp_path)))
  shim = _ROOT / "docs/javascripts/iframe-worker.js"
  lines = subprocess.run(
    ["node", "browser.js", tmp_path, protocol, shim, worker],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    check=True,
    timeout=60,
  ).stdout.splitlines()
  assert lines == printed
