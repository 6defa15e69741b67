"""Names of clients, classes and columns."""

import numpy as np
import pandas

from tff_shift.data.shifts import dynamic_personalization
from tff_shift.data.shifts import evolving
from tff_shift.data.shifts import guidance
from tff_shift.data.shifts import online_adaptation
from tff_shift.data.sources import frames


def load_all(name):
  """Loads a data set of two clients and four times as each scenario does."""
  timed, untimed = name, name.replace("&time=month", "")
  return [
    evolving.load_evolving(timed),
    online_adaptation.load_online_adaptation(timed),
    dynamic_personalization.load_dynamic_personalization(timed, seed=0),
    guidance.load_guidance(untimed, num_clients=2, partition=None, seed=0),
  ]


def test_columns_and_clients_of_a_table_in_every_scenario(tmp_path):
  rows = np.arange(160)
  path = tmp_path / "table.csv"
  pandas.DataFrame(
    {
      "weight": rows * 0.5,
      "sick": np.where(rows % 2, "yes", "no"),
      "site": np.where(rows // 2 % 2, "south", "north"),
      "month": rows // 40,
      "age": rows + 20,
    }
  ).to_csv(path, index=False)
  options = "label=sick&client=site&features=weight,age&time=month"
  for loaded in load_all(f"{path}?{options}"):
    assert loaded.schema.features == ("weight", "age")
    assert loaded.schema.clients == ("north", "south")
    assert loaded.schema.classes == ("no", "yes")


def test_elements_of_vectors_have_the_name_of_their_column():
  frame = pandas.DataFrame(
    {"age": [1.0, 2.0], "y": [0, 1], "v": [np.ones(2), np.zeros(2)]}
  )
  table = frames.read(frame, "y")
  assert table.schema.features == ("age", "v[0]", "v[1]")
  np.testing.assert_array_equal(table.x, [[1, 1, 1], [2, 0, 0]])
