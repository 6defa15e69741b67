"""Titles of Reddit, in files of a few lines whose content is known."""

import calendar
import csv
import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tff_shift.data import datasets
from tff_shift.data.readers import text_archives
from tff_shift.data.shifts import evolving

SUBREDDITS = text_archives.SUBREDDITS


def at(*moment) -> int:
  return calendar.timegm((*moment, 0, 0, 0)[:6])


def post(title, subreddit, created_utc):
  return {"title": title, "subreddit": subreddit, "created_utc": created_utc}


def records(per_cell=3):
  """So many titles of each class and half-year, each with a word of its own."""
  return [
    post(
      f"The {subreddit} of {half_year} {number}",
      subreddit,
      at(2014 + half_year // 2, 1 + 6 * (half_year % 2), 1) + 60 * number,
    )
    for half_year in range(10)
    for subreddit in SUBREDDITS
    for number in range(per_cell)
  ]


def write(folder, rows, name="posts.jsonl"):
  archive = folder / text_archives.REDDIT_FOLDER
  archive.mkdir(exist_ok=True)
  path = archive / name
  if path.suffix == ".jsonl":
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  else:
    with open(path, "w", newline="", encoding="utf-8") as file:
      writer = csv.DictWriter(file, list(rows[0]))
      writer.writeheader()
      writer.writerows(rows)
  return path


def titles(loaded):
  return [
    " ".join(loaded.vocabulary[word] for word in row if word)
    for row in loaded.x
  ]


def test_titles_come_by_half_year_class_and_time(tmp_path):
  others = [
    post("of another place", "pics", at(2015, 1, 1)),
    post("too early", "news", at(2014, 1, 1) - 1),
    post("too late", "news", at(2019, 1, 1)),
    post("?!", "news", at(2015, 1, 1)),
    # What cannot be chosen may lack anything else.
    {"title": "Buy", "promoted": True},
    post("Buy", None, at(2015, 1, 1)),
    post("Buy", 7, at(2015, 1, 1)),
    post(None, "pics", at(2015, 1, 1)),
    post(["a"], "pics", "May"),
    {"subreddit": "NEWS", "created_utc": at(2019, 1, 1)},
    {},
  ]
  write(tmp_path, [*others, *records()[::-1]])
  loaded = datasets.load("reddit", data_dir=tmp_path)
  assert loaded.x.shape == (150, 30)
  assert titles(loaded) == [row["title"].lower() for row in records()]
  assert loaded.time.tolist() == np.repeat(np.arange(10), 15).tolist()
  assert loaded.y.tolist() == np.tile(np.repeat(np.arange(5), 3), 10).tolist()
  assert loaded.schema.classes == SUBREDDITS


def test_half_years_begin_at_midnight_in_greenwich(tmp_path):
  edge = at(2016, 7, 1)
  more = [post(f"edge {second}", "movies", edge + second) for second in (-1, 0)]
  write(tmp_path, records(1) + more)
  loaded = datasets.load("reddit", data_dir=tmp_path)
  found = dict(zip(titles(loaded), loaded.time, strict=True))
  # The edge's number is "1": a sign is no part of a word.
  assert (found["edge 1"], found["edge 0"]) == (4, 5)


def test_repeated_titles_count_once_and_where_they_came_first(tmp_path):
  rows = records(1)
  again = [
    # Of a later half-year, of another class, and with other signs.
    post("THE NEWS of 2: 0!", "news", at(2018, 1, 9)),
    post("the news of 3 0", "worldnews", at(2015, 8, 1)),
    post("both", "worldnews", at(2015, 8, 1)),
    post("both", "news", at(2015, 8, 2)),
  ]
  write(tmp_path, again + rows)
  loaded = datasets.load("reddit", data_dir=tmp_path)
  found = titles(loaded)
  assert len(found) == len(set(found)) == 51
  place = found.index("both")
  assert (loaded.y[place], loaded.time[place]) == (
    SUBREDDITS.index("worldnews"),
    3,
  )
  assert loaded.time[found.index("the news of 2 0")] == 2


def test_as_many_are_drawn_of_each_whatever_the_files(tmp_path, monkeypatch):
  monkeypatch.setattr(text_archives, "_TITLES_PER_CELL", 4)
  rows = records(9)
  write(tmp_path, rows)
  drawn = datasets.load("reddit", data_dir=tmp_path)
  assert len(drawn.y) == 10 * 5 * 4
  assert set(np.bincount(5 * drawn.time + drawn.y)) == {4}
  # Not the first of each.
  assert not {f"the news of 0 {n}" for n in range(4)} <= set(titles(drawn))
  other = tmp_path / "other"
  other.mkdir()
  write(other, rows[::2], "b.jsonl")
  write(other, rows[1::2][::-1], "a.csv")
  again = datasets.load("reddit", data_dir=other)
  assert_array_equal(again.x, drawn.x)
  assert_array_equal(again.y, drawn.y)


def test_csv_and_texts_of_numbers_and_marks_are_read(tmp_path):
  rows = records(1)
  rows[0]["title"] = 'The, "AskReddit"\nof 0 0'
  rows[1]["created_utc"] = f"{rows[1]['created_utc']}.0"
  path = write(tmp_path, rows, "posts.csv")
  path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
  loaded = datasets.load("reddit", data_dir=tmp_path)
  assert titles(loaded) == [row["title"].lower() for row in records(1)]


def test_files_are_read_once_and_again_when_they_change(tmp_path, monkeypatch):
  write(tmp_path, records(1))
  first = datasets.load("reddit", data_dir=tmp_path)
  with monkeypatch.context() as patches:
    patches.setattr(text_archives, "_titles", None)
    again = datasets.load("reddit", data_dir=tmp_path)
  assert again.x is first.x and not first.x.flags.writeable
  write(tmp_path, records(2))
  assert len(datasets.load("reddit", data_dir=tmp_path).y) == 100


def test_domains_have_the_words_of_the_sources(tmp_path):
  rows = records(2)
  for row in rows:
    row["title"] += (
      " in 2018b" if row["created_utc"] >= at(2018, 7, 1) else " in"
    )
  write(tmp_path, rows)
  dataset = evolving.load_evolving("reddit", data_dir=tmp_path)
  assert [each.name for each in dataset.domains[::9]] == [
    "Jan-Jun 2014",
    "Jul-Dec 2018",
  ]
  # The most frequent first: 90 times, and by alphabet; "9" is the last domain's
  # number, and of no other.
  assert dataset.vocabulary[2:5] == ("in", "of", "the")
  assert not {"2018b", "9"} & set(dataset.vocabulary)
  target = dataset.domains[-1].x
  assert (target == 1).sum() == 2 * len(target)
  fewer = evolving.load_evolving("reddit", data_dir=tmp_path, num_domains=5)
  assert fewer.domains[-1].name == "Jan-Jun 2018 to Jul-Dec 2018"
  # Nor what only its second last half-year has.
  assert "8" in dataset.vocabulary and "8" not in fewer.vocabulary


GOOD = json.dumps(records(1)[0]).encode()


@pytest.mark.parametrize(
  "name, lines, expected",
  [
    ("a.jsonl", [GOOD, b"", b'{"title": '], "line 3: it is not JSON"),
    ("a.jsonl", [GOOD, b"[1]"], "line 2: it is not a JSON object"),
    ("a.jsonl", [GOOD, b'{"t": "caf\xe9"}'], "line 2: it is not UTF-8"),
    (
      "a.jsonl",
      [b'{"title": "a", "subreddit": "news"}'],
      "line 1: it has no created_utc",
    ),
    (
      "a.jsonl",
      [b'{"title": "a", "subreddit": "news", "created_utc": "May"}'],
      "line 1: created_utc must be seconds since 1970, got 'May'",
    ),
    (
      "a.jsonl",
      [b'{"title": 7, "subreddit": "news", "created_utc": 15e8}'],
      "line 1: title must be a text, got 7",
    ),
    ("a.csv", [b"title,subreddit", b"a,news"], "the header has no created_utc"),
    (
      "a.csv",
      [b"title,subreddit,created_utc", b"a,news"],
      "line 2: it has no created_utc",
    ),
    (
      "a.csv",
      [b"title,subreddit,created_utc", b"\xff,a,1"],
      "line 2: it is not",
    ),
    (
      "a.jsonl",
      [b'{"title": null, "subreddit": "News", "created_utc": 15e8}'],
      "line 1: it has no title",
    ),
    ("a.jsonl", [b'{"text": "a"}'], "no title of AskReddit, news, technology"),
    ("a.csv", [], "the header has no title"),
    ("a.jsonl", [GOOD], "no title of news in Jan-Jun 2014"),
  ],
)
def test_what_is_wrong_is_named_with_its_line(
  tmp_path, name, lines, expected, refusal
):
  path = write(tmp_path, [], "empty.jsonl").with_name(name)
  path.write_bytes(b"".join(line + b"\n" for line in lines))
  message = refusal(datasets.load, "reddit", data_dir=tmp_path)
  assert expected in message
  assert message.startswith(str(path) if "line" in expected else str(tmp_path))
