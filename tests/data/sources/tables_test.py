"""Tests of CSV and Parquet files: cells as they stand in the file."""

import gzip
import io
import os

import numpy as np
import pandas
import pytest

from tff_shift.data import datasets
from tff_shift.data import examples
from tff_shift.data import sources
from tff_shift.data.sources import frames

OPTIONS = "?label=y&client=c&time=t"


@pytest.fixture
def write(tmp_path):
  """Returns `write(text, name)`, which gives the name of the data set."""

  def write(text, name="t.csv"):
    path = tmp_path / name
    if isinstance(text, pandas.DataFrame):
      text.to_parquet(path)
    else:
      path.write_bytes(text.encode())
    return f"{path}{OPTIONS}"

  return write


def cells_of(classes="ab", clients="pq", times="12"):
  """The client, label and time of each row: all that there are."""
  return [(c, y, t) for t in times for c in clients for y in classes]


def rows(**values):
  lines = [f"{a},{c},{y},{t}" for a, (c, y, t) in enumerate(cells_of(**values))]
  return "\n".join(["a,c,y,t", *lines, ""])


# The codes of a role, and its place in a cell.
ROLES = {"clients": ("client", 0), "classes": ("y", 1), "times": ("time", 2)}


@pytest.mark.parametrize(
  "role, values, names",
  [
    ("clients", ["7", "007"], ("007", "7")),
    ("classes", ["NA", "None"], ("NA", "None")),
    ("clients", ["1e3", "1000", "9"], ("9", "1000", "1e3")),
    ("clients", ["10", "9", "-1"], ("-1", "9", "10")),
    ("clients", ["10", "9", "x"], ("10", "9", "x")),
    ("clients", ["1.10", "1.9"], ("1.10", "1.9")),
    ("times", ["2020", "2019", "12020"], ("2019", "2020", "12020")),
    ("times", ["2.0", "10.0"], ("2.0", "10.0")),
    ("times", ["2024-02-01", "2024-01-31"], ("2024-01-31", "2024-02-01")),
  ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_names_are_texts_of_the_file(write, role, values, names, kind):
  table = rows(**{role: values})
  if kind == "parquet":
    table = pandas.read_csv(
      io.StringIO(table), dtype=dict.fromkeys("cyt", str), keep_default_na=False
    )
  loaded = datasets.load(write(table, f"t.{kind}"))
  assert getattr(loaded.schema, role) == names
  # Every row has the value that stands there.
  cells = cells_of(**{role: values})
  field, place = ROLES[role]
  assert [names[code] for code in getattr(loaded, field)] == [
    cell[place] for cell in cells
  ]
  assert loaded.x.ravel().tolist() == list(range(len(cells)))


def test_dictionary_of_parquet_is_sorted(write):
  frame = pandas.DataFrame({"a": range(8), "c": "p", "t": [1, 2] * 4})
  names = ["no", "yes"] * 4
  for ordered, wanted in ((False, ("no", "yes")), (True, ("yes", "no"))):
    y = pandas.Categorical(names, ["yes", "no"], ordered=ordered)
    loaded = datasets.load(write(frame.assign(y=y), "t.parquet"))
    assert loaded.schema.classes == wanted
    assert [wanted[code] for code in loaded.y] == names


def test_stored_index_is_left_out_with_a_warning(write):
  text = rows().splitlines()
  indexed = [",".join(cells) for cells in zip(["", *"01234567"], text,
                                              strict=True)]  # fmt: skip
  name = write("\n".join(indexed))
  with pytest.warns(examples.DataWarning, match="column 'Unnamed: 0' has no"):
    loaded = datasets.load(name)
  assert loaded.x.ravel().tolist() == list(range(8))


GOOD = "0,p,a,1\n1,q,b,2\n"


@pytest.mark.parametrize(
  "text, message",
  [
    ("a,y,y,c,t\n" + GOOD, "header: 'y' is there twice (column 2 and column"),
    ("a,c,y,t\n0,p,a,1,9\n1,q,b,2,9\n", "line 2 has more values than the head"),
    ("a,c,y,t\n" + GOOD + "2,p,a,1,9\n", "it cannot be read (Error tokenizing"),
    ("a,c,y,t\n" + GOOD + "2\0,p,a,1\n", "it cannot be read (line 4 has a NUL"),
    ("a,c,y,t\n" + GOOD + "\n\nx,p,a,1\n", "features: column 'a' has 'x' in li"
     "ne 6, not a number"),
    ("a,c,y,t\n" + GOOD + "3,\"p\n\",a,1\n,p,a,1\n", "client 'c': 'p' (line 2"
     ") and 'p\\n' (line 4) differ only in blanks"),
    ("a,c,y,t\n" + GOOD + ",p,a,1\n", "features: column 'a' has 1 missing valu"
     "es, the first in line 4"),
    ("a,c,y,t\n" + GOOD + "inf,p,a,1\n", "features: column 'a' has inf in line"
     " 4"),
    ("a,c,y,t\n" + GOOD + "2,p,,1\n", "label 'y' has missing values, the first"
     " in line 4"),
    ("a,c,y,t\n" + GOOD + "2,p,a\n", "time 't' has missing values, the first i"
     "n line 4"),
    ("a,c,y,t\n0,p,1,1\n1,q,0.5,2\n", "label 'y' has fractions, such as 0.5 in"
     " line 3"),
    ("a,c,y,t\n" + GOOD + "2,p,a,01\n", "--time=t: '1' (line 2) and '01' (line"
     " 4) are the same number"),
    ("a,c,y,t\n" + GOOD + "2,p,a,May\n", "--time=t must be numbers or dates su"
     "ch as 2024-01-31, got 'May' in line 4"),
    ("a,c,y,t\n0,p,a,2024-01-31\n1,q,b,2024-02-30\n2,q,b,2024-02-29\n",
     "--time=t must be numbers or dates such as 2024-01-31, got '2024-02-30' i"
     "n line 3"),
    ("a,c,y,t\n1700000000,p,a,1\n1700000001,q,b,2\n", "features: float32 canno"
     "t tell the values of 'a' apart (2 values, 1 left)"),
  ],
)  # fmt: skip
def test_cells_are_refused_with_value_and_line(write, refusal, text, message):
  name = write(text)
  path = name.partition("?")[0]
  told = refusal(datasets.load, name)
  assert told.startswith(f"{path}: {message}")
  assert "\n" not in told


def test_late_text_of_a_long_file_makes_no_second_name(write):
  """Blocks of pandas' reader have one type."""
  number = 36_000
  label = [str(n % 2) for n in range(number)]
  label[-5] = "unknown"
  lines = [f"{n % 9},p,{y},{n % 2}" for n, y in enumerate(label)]
  loaded = datasets.load(write("\n".join(["a,c,y,t", *lines])))
  assert loaded.schema.classes == ("0", "1", "unknown")
  assert [loaded.schema.classes[code] for code in loaded.y] == label


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_other_than_regular_files_are_refused(tmp_path, refusal, suffix):
  pipe, endless = (tmp_path / f"{n}{suffix}" for n in "ab")
  os.mkfifo(pipe)
  endless.symlink_to("/dev/zero")
  for path, kind in ((pipe, "a named pipe"), (endless, "a device")):
    for function in (datasets.load, sources.checksum):
      told = refusal(function, f"{path}?label=y")
      assert f"{path} is {kind}; it must be a file" in told


GERMAN = "alter;ward;sex;day;born\n" + "".join(
  f"{row},5;{('süd', 'nord')[row % 2]};{'mw'[row // 2 % 2]};"
  f"2024-0{1 + row // 8}-{3 + row:02d}T23:30+0{1 + row % 2}:00;"
  f"1970-01-{1 + row:02d}\n"
  for row in range(24)
)
GERMAN_OPTIONS = (
  "?label=sex&client=ward&time=day&separator=;&decimal=,&encoding=latin-1"
)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_dialect_compression_and_dates(tmp_path, suffix):
  path = tmp_path / f"klinik{suffix}"
  content = GERMAN.encode("latin-1")
  path.write_bytes(gzip.compress(content) if suffix == ".csv.gz" else content)
  with pytest.warns(
    examples.DataWarning, match=r"time zones \(\+01:00, \+02:00"
  ):
    loaded = datasets.load(f"{path}{GERMAN_OPTIONS}&time_unit=month")
  assert loaded.schema.clients == ("nord", "s\u00fcd")
  # The last minutes of a day as written, not in UTC.
  assert loaded.schema.times == ("2024-01", "2024-02", "2024-03")
  assert loaded.schema.features == ("alter", "born")
  days = np.arange(24)
  np.testing.assert_array_equal(loaded.x, np.stack([days + 0.5, days], axis=1))
  assert sources.short_name(str(path)) == "klinik"


@pytest.mark.parametrize(
  "unit, times",
  [
    # 2024-12-30 is a day of the first week of 2025.
    ("week", ("2023-W52", "2024-W01", "2025-W01")),
    ("day", ("2023-12-31", "2024-01-01", "2024-01-02", "2024-12-30")),
    ("quarter", ("2023-Q4", "2024-Q1", "2024-Q4")),
    ("year", ("2023", "2024")),
  ],
)
def test_calendar_units(unit, times):
  dates = ["2024-12-30", "2023-12-31", "2024-01-01", "2024-01-02 23:59"]
  frame = pandas.DataFrame(
    {
      "a": range(8),
      "y": [0, 1] * 4,
      "t": pandas.to_datetime(dates * 2, format="ISO8601"),
    }
  )
  content = frames.read(frame, "y", time="t", time_unit=unit)
  assert content.schema.times == times
  first = int(np.argmin(frame["t"]))
  assert content.time[first] == 0


def test_times_with_fractions_have_the_order_of_numbers(write):
  text = rows(times=("13.0", "2.5", "9.0", "0.5"))
  as_text = sources.load(write(text))
  frame = pandas.read_csv(io.StringIO(text))
  assert frame["t"].dtype == np.float64
  as_numbers = sources.load(write(frame, "t.parquet"))
  for content in (as_text, as_numbers):
    assert content.schema.times == ("0.5", "2.5", "9.0", "13.0")
    assert [content.schema.times[i] for i in content.time] == [
      *(["13.0"] * 4 + ["2.5"] * 4 + ["9.0"] * 4 + ["0.5"] * 4)
    ]


@pytest.mark.parametrize(
  "changes, message",
  [
    ("&separator=;;", "--separator=;;: it must be one character"),
    ("&encoding=klingon", "--encoding=klingon: Python has no such encoding"),
    ("&separator=;&decimal=;", "--decimal=;: --separator must be another"),
    ("&time_unit=moon", "--time_unit must be one of day, week, month, quarter"),
    ("", "its only column is 'a;c;y;t'; --separator names the character"),
    (
      "&separator=;&time_unit=month",
      "time_unit=month: time 't' has no dates, such as 2024-01-31",
    ),
  ],
)
def test_wrong_dialects_are_refused(write, changes, message, refusal):
  name = write(rows().replace(",", ";"))
  told = refusal(datasets.load, name + changes)
  assert told.startswith(f"{name.partition('?')[0]}: {message}")


def test_bytes_of_another_encoding_are_refused(tmp_path, refusal):
  (tmp_path / "t.csv").write_bytes(GERMAN.encode("latin-1"))
  told = refusal(datasets.load, f"{tmp_path}/t.csv{OPTIONS}")
  assert "can't decode byte 0xfc" in told and "--encoding names another" in told
