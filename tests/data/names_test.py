"""Names of clients, classes and columns."""

import numpy as np
import pandas

from tff_shift.data.shifts import evolving
from tff_shift.data.sources import frames


def test_columns_and_clients_of_a_table(tmp_path):
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
  schema = evolving.load_evolving(f"{path}?{options}").schema
  assert schema.features == ("weight", "age")
  assert schema.clients == ("north", "south")
  assert schema.classes == ("no", "yes")


def test_elements_of_vectors_have_the_name_of_their_column():
  frame = pandas.DataFrame(
    {"age": [1.0, 2.0], "y": [0, 1], "v": [np.ones(2), np.zeros(2)]}
  )
  table = frames.read(frame, "y")
  assert table.schema.features == ("age", "v[0]", "v[1]")
  np.testing.assert_array_equal(table.x, [[1, 1, 1], [2, 0, 0]])
