"""The page as a reader has it: in a real browser, from a file."""

import base64
import itertools
import json
import os
import shutil
import urllib.parse

import pytest
from selenium import webdriver
from selenium.webdriver.common import by
from selenium.webdriver.common import keys
from selenium.webdriver.support import ui

from tff_shift.reporting.pages import page

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_BROWSER = next(filter(None, map(shutil.which, _BROWSERS)), None)
_DRIVER = shutil.which("chromedriver")
_OPTIONS = (
  *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
  *("--no-first-run", "--disable-background-networking"),
  *("--disable-component-update", "--disable-sync"),
  "--disable-dev-shm-usage",
)
_HOMES = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    _BROWSER is None or _DRIVER is None,
    reason="Chromium and its chromedriver are not installed",
  ),
]

# The contrast of each text with what is behind it (WCAG 2.2, 1.4.3), the least
# first. No colour of the page is translucent.
_CONTRASTS = """
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = (text) => {
    const [r, g, b] = channels(text).map((c) => c / 255).map(
      (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if (channels(color)[3] !== 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.getClientRects().length)
      continue;
    const style = getComputedStyle(element);
    const front = element.closest("svg") ? style.fill : style.color;
    const pair = [luminance(front), luminance(behind(element))].sort();
    found.push([(pair[1] + 0.05) / (pair[0] + 0.05), texts.currentNode.data]);
  }
  return found.sort((a, b) => a[0] - b[0]);
"""


@pytest.fixture(scope="module")
def folder(contents, tmp_path_factory):
  path = tmp_path_factory.mktemp("page")
  for cell in contents.cells:
    if cell.run is not None:
      (path / cell.run.folder).mkdir(parents=True, exist_ok=True)
  page.write(contents, path)
  return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
  options = webdriver.ChromeOptions()
  options.binary_location = _BROWSER
  for option in _OPTIONS:
    options.add_argument(option)
  home = tmp_path_factory.mktemp("home")
  options.add_argument(f"--user-data-dir={home / 'profile'}")
  options.set_capability(
    "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
  )
  driver = webdriver.Chrome(
    # What a browser leaves beside its profile goes there as well.
    service=webdriver.ChromeService(
      _DRIVER, env={**os.environ, **dict.fromkeys(_HOMES, str(home))}
    ),
    options=options,
  )
  yield driver
  driver.quit()


@pytest.fixture
def opened(browser, folder):
  """The browser with the page as it is opened, at a desk and in daylight."""
  show(browser, width=1280)
  browser.get((folder / "report.html").as_uri())
  return browser


def show(browser, *, width=1280, scheme="light", media="screen"):
  browser.execute_cdp_cmd(
    "Emulation.setDeviceMetricsOverride",
    {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False},
  )
  browser.execute_cdp_cmd(
    "Emulation.setEmulatedMedia",
    {
      "media": media,
      "features": [{"name": "prefers-color-scheme", "value": scheme}],
    },
  )


def find(browser, selector):
  return browser.find_element(by.By.CSS_SELECTOR, selector)


def find_all(browser, selector):
  return browser.find_elements(by.By.CSS_SELECTOR, selector)


def texts(browser, selector):
  return [each.text for each in find_all(browser, selector) if each.text]


def head(browser, table, name):
  return next(
    each
    for each in find_all(browser, f"#{table} th[aria-sort]")
    if each.text.startswith(name)
  )


def column(browser, name):
  """The cells' texts of a column of the long table, as it is sorted."""
  index = browser.execute_script(
    "return arguments[0].cellIndex", head(browser, "cells", name)
  )
  return texts(browser, f"#cells tbody tr > :nth-child({index + 1})")


def test_page_says_what_there_is(opened):
  assert opened.title == "A table & its page"
  assert texts(opened, "h1") == ["A table & its page"]
  alarms = texts(opened, ".alarm")
  assert "Reduced." in alarms[0] and "rounds" in alarms[0]
  assert "4 of 7 cells that can be run are missing or partial" in alarms[1]
  reduced = find(opened, "tr.reduced")
  assert "reduced" in reduced.text and "100" in reduced.text
  # A name is a name, whatever is in it, and notes are no program.
  assert '<b>&"x"' in texts(opened, "#matrix tbody th")
  assert not find_all(opened, "main b")
  assert "60.50 ± 0.41 (4)" in find(opened, "#matrix").text
  assert texts(opened, ".notes td") == ["--distance", "l2"]
  certain = find(opened, "#cells tbody td.worse")
  assert certain.text.startswith("\N{MINUS SIGN}9.50 ▼")
  assert certain.text.endswith("*")


def test_sorting_by_mouse_and_by_keyboard(opened):
  assert column(opened, "Method")[0] == "FedAvg"
  ours = head(opened, "cells", "Ours")
  ours.find_element(by.By.TAG_NAME, "button").click()
  assert ours.get_attribute("aria-sort") == "ascending"
  values = column(opened, "Ours")
  means = [float(each.split()[0]) for each in values if each[0].isdigit()]
  assert means == sorted(means) == [0.375, 0.375, 53.0, 60.5, 71.0]
  # What has no value stays last, whatever the direction.
  assert not values[-1][0].isdigit()
  ours.find_element(by.By.TAG_NAME, "button").send_keys(keys.Keys.ENTER)
  assert ours.get_attribute("aria-sort") == "descending"
  values = column(opened, "Ours")
  assert values[0].startswith("71.00") and not values[-1][0].isdigit()
  method = head(opened, "cells", "Method").find_element(
    by.By.TAG_NAME, "button"
  )
  method.send_keys(keys.Keys.SPACE)
  assert ours.get_attribute("aria-sort") == "none"
  assert column(opened, "Method")[0] == '<b>&"x"'


def test_whole_heading_sorts(opened):
  # The corner of the cell, outside of the text.
  ours = head(opened, "cells", "Ours")
  width, height = ours.size["width"], ours.size["height"]
  webdriver.ActionChains(opened).move_to_element_with_offset(
    ours, 3 - width // 2, 3 - height // 2
  ).click().perform()
  assert ours.get_attribute("aria-sort") == "ascending"
  button = ours.find_element(by.By.TAG_NAME, "button")
  assert button.size["width"] >= width - 2


@pytest.mark.parametrize("width", [360, 1280])
def test_every_section_fits(opened, width):
  show(opened, width=width)
  sections = find_all(opened, "main > section")
  assert len(sections) > 8
  for each in sections:
    left, right = opened.execute_script(
      "const place = arguments[0].getBoundingClientRect();"
      "return [place.left, place.right]",
      each,
    )
    assert 0 <= left < right <= width


def test_table_of_the_paper_is_sorted_as_well(opened):
  find_all(opened, "#matrix button.sort")[1].click()
  assert texts(opened, "#matrix tbody th")[:3] == ["a_b%", "FedAvg", '<b>&"x"']


def test_filter_by_words_and_by_state(opened):
  assert texts(opened, "#filter-count") == ["8 cells"]
  field = find(opened, "#filter-text")
  field.send_keys("fedavg LOSS")
  assert texts(opened, "#filter-count") == ["1 cell"]
  assert texts(opened, "#cells tbody th") == ["FedAvg"]
  assert texts(opened, "#matrix tbody th") == ["FedAvg"]
  field.clear()
  field.send_keys("nothing has this")
  assert texts(opened, "#filter-count") == ["0 cells"]
  field.clear()
  field.send_keys(" ")
  ui.Select(find(opened, "#filter-state")).select_by_visible_text("partial")
  ui.WebDriverWait(opened, 600, 0.05).until(
    lambda _: texts(opened, "#filter-count") == ["2 cells"]
  )
  assert texts(opened, "#cells tbody th") == ['<b>&"x"'] * 2
  # A number leads to what is known of it.
  find(opened, "#matrix tbody tr:not([hidden]) td a").click()
  assert find(opened, "#cells tr:target th").text == '<b>&"x"'


def test_links_lead_somewhere(opened, folder):
  addresses = opened.execute_script(
    "return [...document.querySelectorAll('a')].map((a) => a.href)"
  )
  assert len(addresses) > 20
  for address in addresses:
    parts = urllib.parse.urlsplit(address)
    path = urllib.parse.unquote(parts.path)
    assert parts.scheme == "file"
    if parts.fragment:
      assert find(opened, f"#{parts.fragment}") is not None
    else:
      assert (folder / path).exists(), address
  runs = find_all(opened, "#runs tbody a")
  assert [each.text for each in runs] == [
    "runs/fed_avg",
    "runs/odd",
    "runs/a_b%",
  ]


def test_command_can_be_copied(opened):
  find(opened, "#cells tbody details summary").click()
  command = find(opened, "#cells tbody details .command")
  wanted = command.find_element(by.By.TAG_NAME, "code").text
  assert wanted == (
    "python -m experiments.evolving --algorithm=fed_avg --seeds=0,1"
  )
  details = find(opened, "#cells tbody details").text
  assert "learning rate 0.01: 87.25" in details
  assert "learning rate = 0.01" in details
  button = command.find_element(by.By.TAG_NAME, "button")
  button.click()
  ui.WebDriverWait(opened, 600, 0.05).until(lambda _: button.text == "Copied")
  field = find(opened, "#filter-text")
  field.send_keys(keys.Keys.CONTROL, "v")
  assert field.get_attribute("value") == wanted


def test_legend_hides_a_method(opened):
  lines = find_all(opened, 'g[data-row="0"]')
  # In the profile, and in the curves of rounds and of domains.
  assert len(lines) == 3 and all(each.is_displayed() for each in lines)
  find(opened, ".legend input[value='0']").click()
  assert not any(each.is_displayed() for each in lines)
  # All legends agree.
  boxes = find_all(opened, ".legend input[value='0']")
  assert len(boxes) == 2 and not any(each.is_selected() for each in boxes)
  assert find(opened, 'g[data-row="1"]').is_displayed()


def test_nobody_is_asked_and_nothing_complains(opened):
  # So that all that it might have asked for has been asked for.
  opened.execute_async_script("requestAnimationFrame(() => arguments[0]())")
  assert opened.get_log("browser") == []
  asked = [
    message["params"]["request"]["url"]
    for message in (
      json.loads(entry["message"])["message"]
      for entry in opened.get_log("performance")
    )
    if message["method"] == "Network.requestWillBeSent"
    # The browser's own first tab is another document.
    and message["params"]["documentURL"].endswith("/report.html")
  ]
  assert asked
  assert {urllib.parse.urlsplit(url).scheme for url in asked} <= {
    "file",
    "data",
  }


def test_page_is_in_order_for_a_screen_reader(opened):
  levels = opened.execute_script(
    "return [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')]"
    ".map((h) => Number(h.tagName[1]))"
  )
  assert levels[0] == 1 and levels.count(1) == 1
  assert all(
    after <= before + 1 for before, after in itertools.pairwise(levels)
  )
  for landmark in ("header", "nav", "main", "footer"):
    assert len(find_all(opened, landmark)) == 1
  nameless = opened.execute_script(
    """
    return [...document.querySelectorAll("section,[role=region]")].filter(
      (e) => !(e.ariaLabel ||
               document.getElementById(e.getAttribute("aria-labelledby"))));
    """
  )
  assert not nameless
  tables = find_all(opened, "main > section table:not(.notes table)")
  assert len(tables) > 4
  assert all(find_all(table, "caption") for table in tables)
  assert all(
    each.get_attribute("aria-label") for each in find_all(opened, "figure svg")
  )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(opened, scheme):
  show(opened, scheme=scheme)
  opened.execute_script(
    "for (const each of document.querySelectorAll('details')) each.open = true"
  )
  background = opened.execute_script(
    "return getComputedStyle(document.body).backgroundColor"
  )
  assert (
    background
    == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]
  )
  contrasts = opened.execute_script(_CONTRASTS)
  assert len(contrasts) > 100
  assert contrasts[0][0] >= 4.5, contrasts[:5]


def test_narrow_page_scrolls_tables_alone(opened):
  show(opened, width=360)
  opened.execute_script(
    "for (const each of document.querySelectorAll('details')) each.open = true"
  )
  # A scroll bar at the side may take a part of it.
  assert opened.execute_script(
    "return document.documentElement.scrollWidth"
  ) == opened.execute_script("return document.documentElement.clientWidth")
  left, right, method = opened.execute_script(
    """
    const region = document.querySelector("#cells").parentElement;
    const cell = region.querySelector("tbody th");
    const before = cell.getBoundingClientRect().left;
    region.scrollLeft = 10000;
    return [before, cell.getBoundingClientRect().left, region.scrollLeft];
    """
  )
  # It was scrolled, and the method has stayed.
  assert method > 0 and left == right


def test_page_can_be_printed(opened):
  show(opened, scheme="dark", media="print")
  assert not find(opened, "nav").is_displayed()
  assert not find(opened, ".controls").is_displayed()
  assert (
    opened.execute_script(
      "return getComputedStyle(document.body).backgroundColor"
    )
    == "rgb(255, 255, 255)"
  )
  opened.execute_script("dispatchEvent(new Event('beforeprint'))")
  pairs = find(opened, "details.open-in-print")
  assert pairs.get_attribute("open")
  opened.execute_script("dispatchEvent(new Event('afterprint'))")
  assert not pairs.get_attribute("open")
  content = base64.b64decode(opened.print_page())
  assert content.startswith(b"%PDF-") and len(content) > 10_000


def test_what_is_wide_fits_on_paper(opened):
  # A4, landscape, without its margins.
  show(opened, width=1032, media="print")
  widths = opened.execute_script(
    "return [...document.querySelectorAll('table')].map((t) => t.offsetWidth)"
  )
  assert max(widths) <= 1032


def test_page_needs_no_script(browser, folder):
  browser.execute_cdp_cmd(
    "Emulation.setScriptExecutionDisabled", {"value": True}
  )
  try:
    browser.get((folder / "report.html").as_uri())
    assert "60.50 ± 0.41 (4)" in find(browser, "#matrix").text
    # What would do nothing is not there.
    assert not find(browser, ".controls").is_displayed()
    assert not find(browser, "button.copy").is_displayed()
  finally:
    browser.execute_cdp_cmd(
      "Emulation.setScriptExecutionDisabled", {"value": False}
    )
