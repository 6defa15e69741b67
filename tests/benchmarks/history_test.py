"""Rows of `benchmarks/history.md`: reading, adding, comparing. Nothing runs."""

import pytest

from benchmarks import history

_ROW = {
  "date": "2026-01-02",
  "commit": "abc",
  "processor": "P, 2 cores",
  "processes": "5",
  "load": "0.1",
  "10 clients": "1.2 (1.1 to 1.3)",
}


def _row(**cells):
  return _ROW | cells


class TestMeasures:
  def test_ratios_of_lines_that_match(self):
    output = (
      "Warning: 3 clients\n"
      "   10 clients: in process 0.0075 s, plain loop 0.0064 s, ratio 1.16\n"
      " 1000 clients: in process 0.5 s, plain loop 0.4 s, ratio 1.25\n"
      "evaluation of 1000 clients: 0.27 CPU s, round 1.21 CPU s, 0.2 to 0.3,"
      " ratio 0.22\n"
    )
    assert history.measures(history.BENCHMARKS["small_clients"], output) == {
      "10 clients": 1.16,
      "1000 clients": 1.25,
      "evaluation of 1000 clients": 0.22,
    }

  def test_base_of_the_ratios_is_not_one_of_them(self):
    output = (
      " seconds  ratio  median of 3\n"
      "   1.136   1.00  plain TensorFlow, clients in sequence\n"
      "   1.045   0.92  tff_shift, in process\n"
    )
    assert history.measures(history.BENCHMARKS["round_cost"], output) == {
      "tff_shift, in process": 0.92
    }

  def test_output_without_a_measure_is_refused(self):
    with pytest.raises(ValueError, match="no line of the output matches"):
      history.measures(history.BENCHMARKS["algorithm_cost"], "changed\n")


def test_spread_is_median_minimum_and_maximum():
  assert str(history.spread([1.4, 1.0, 1.1])) == "1.1 (1 to 1.4)"


class TestFile:
  def test_what_is_written_is_read(self):
    rows = [_row(commit="new"), _row()]
    # A new measure is a column with empty cells.
    wider = [_row(**{"100 clients": "1 (1 to 1)"}), _row()]
    tables = {"round_cost": rows, "algorithm_cost": wider}
    head = "# Title\n\nText.\n\n"
    text = history.render(head, tables)
    wider[1] = _row(**{"100 clients": ""})
    assert history.parse(text) == (head, tables)
    assert history.render(*history.parse(text)) == text

  def test_own_file_is_readable(self):
    text = history._FILE.read_text()
    assert history.render(*history.parse(text)) == text


@pytest.mark.parametrize(
  "cell, is_moved",
  [
    ("1.3 (1.3 to 1.5)", False),
    ("1 (0.9 to 1.1)", False),
    ("1.4 (1.31 to 1.5)", True),
    ("1 (0.9 to 1.09)", True),
  ],
)
def test_moved_measures_have_spreads_that_do_not_overlap(cell, is_moved):
  line = f"10 clients: 1.2 (1.1 to 1.3) at abc, now {cell}"
  assert (
    history.moved(_row(**{"10 clients": cell}), [_ROW]) == [line] * is_moved
  )


def test_only_the_last_row_of_the_same_processor_counts():
  earlier = [
    _row(processor="other", **{"10 clients": "9 (9 to 9)"}),
    _row(),
    _row(**{"10 clients": "5 (5 to 5)"}),
  ]
  assert history.moved(_row(), earlier) == []
  assert history.moved(_row(processor="third"), earlier) == []
  # A measure that the last row lacks.
  assert history.moved(_row(**{"new": "1 (1 to 1)"}), [_row(new="")]) == []
