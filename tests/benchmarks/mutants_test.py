"""Mutants: where they are, which are drawn, which tests run. None runs here."""

import builtins
import collections
import textwrap

import pytest

from benchmarks import mutants

_PATH = "tff_shift/learning/rates.py"


def _changes(source):
  data = textwrap.dedent(source).encode()
  return [
    (mutant.kind, mutant.shown(data)) for mutant in mutants.mutants(_PATH, data)
  ]


class TestMutants:
  @pytest.mark.parametrize(
    ("line", "changes"),
    [
      (
        "a = b - c",
        {
          "operator": "a = b [[- -> +]] c",
          "dropped term": "a = [[b - c -> (b)]]",
        },
      ),
      ("a = -b", {"operator": "a = [[-b -> (b)]]"}),
      ("a = b[-1]", {"index": "a = b[[[-1 -> 0]]]"}),
      ("a = f(b, axis=1)", {"index": "a = f(b, axis=[[1 -> 2]])"}),
      ("a = f(3)", {"off by one": "a = f([[3 -> 4]])"}),
      ("a = b <= c", {"comparison": "a = b [[<= -> <]] c"}),
      ("a = b not in c", {"comparison": "a = b [[not in -> in]] c"}),
      ("a = not b", {"condition": "a = [[not b -> (b)]]"}),
      ("a = b or c", {"condition": "a = b [[or -> and]] c"}),
      ("a = f(0.5, b)", {"constant": "a = f([[0.5 -> 1.0]], b)"}),
      ("a = tf.maximum(b, c)", {"call": "a = tf.[[maximum -> minimum]](b, c)"}),
      ("check_size(a)", {"dropped check": "[[check_size(a) -> pass]]"}),
      ("a = {'β': True}", {"constant": "a = {'β': [[True -> False]]}"}),
    ],
  )
  # In the last one, bytes are counted, not characters.
  def test_change_of_a_kind(self, line, changes):
    assert dict(_changes(line)) == changes

  def test_a_raised_error_is_dropped_by_its_condition(self):
    source = """
      if size:
        raise ValueError("a" + str(size + 1))
    """
    assert _changes(source) == [("dropped check", "if [[size -> False]]:")]

  @pytest.mark.parametrize(
    "line",
    [
      "a: Literal[1] = b",
      "def f(a: Literal[1]) -> Literal[2]: ...",
      "assert a == 1",
      "a = 'b' + c",
      "a = f'{1}'",
      "@f(1)\nclass A: ...",
      "if TYPE_CHECKING:\n  a = 1",
      "a = (\n  b  # + is an operator\n  +  # another\n  'c'\n)",
    ],
  )
  def test_types_and_messages_are_left_as_they_are(self, line):
    assert _changes(line) == []


class TestMarks:
  def test_marks_are_reached_with_their_statements(self):
    source = textwrap.dedent("""
      def f(a):
        if a > 0:
          return 5
        elif a < -2:
          return 6

      @staticmethod
      def g(a=7):
        return (
          a
          + 8
        )
    """)
    lines = collections.defaultdict(list)
    for mutant in mutants.mutants(_PATH, source.encode()):
      lines[mutant.mark].append(mutant.text)
    reached = set()
    setattr(builtins, mutants._MARKS, reached)
    names = {}
    try:
      exec(mutants.marked(source, lines), names)
      assert reached == {"8"}
      reached.clear()
      names["f"](1)
      # The condition of `elif` is marked where that of `if` is.
      assert reached == {">=", "1", "<=", "-1", "6"}
      names["g"]()
      assert reached >= {"-", "(a)", "9"}
    finally:
      delattr(builtins, mutants._MARKS)


def test_kinds_are_equally_frequent_and_lines_differ():
  candidates = [
    mutants.Mutant(f"tff_shift/{room}/a.py", line, kind, line, line, "", line)
    for room in ("algorithms", "shift")
    for kind in ("call", "index")
    for line in range(40)
  ]
  drawn = mutants.draw(candidates, 0, 40)
  assert len({(mutant.path, mutant.line) for mutant in drawn}) == 40
  counts = collections.Counter(mutant.kind for mutant in drawn)
  assert abs(counts["call"] - counts["index"]) < 10
  rooms = collections.Counter(mutant.path for mutant in drawn)
  # Of the weights 3 and 1.
  assert 24 <= rooms["tff_shift/algorithms/a.py"] <= 36
  # A draw is a function of the seed alone.
  assert mutants.draw(candidates[::-1], 0, 40) == drawn
  assert mutants.draw(candidates, 2, 40) != drawn


class TestSelection:
  _TESTS = (
    mutants.Test("other_test.py::reaches", 1.0, [3]),
    mutants.Test("other_test.py::shares_a_fixture", 2.0, []),
    mutants.Test("elsewhere_test.py::of_another_mutant", 1.0, [4]),
    mutants.Test("long_test.py::reaches", 5.0, [3]),
    mutants.Test("long_test.py::does_not", 100.0, []),
    mutants.Test("rates_of_clients_test.py::test", 4.0, []),
    mutants.Test("names_test.py::test", 4.0, []),
  )

  @pytest.mark.parametrize(
    ("seconds", "names"),
    [
      (
        60,
        "rates_of_clients_test.py::test other_test.py::reaches"
        " other_test.py::shares_a_fixture long_test.py::reaches"
        " names_test.py::test",
      ),
      (
        7,
        "rates_of_clients_test.py::test other_test.py::reaches"
        " other_test.py::shares_a_fixture",
      ),
    ],
  )
  def test_specific_tests_are_first(self, seconds, names):
    naming = ("names_test.py", "rates_of_clients_test.py")
    texts = {
      test.path: "from a import rates" * (test.path in naming)
      for test in self._TESTS
    }
    selected = mutants.selection(3, _PATH, self._TESTS, texts, seconds)
    assert selected == names.split()


def test_table_names_the_test_or_that_none_fails():
  row = {
    "path": _PATH,
    "line": 3,
    "kind": "operator",
    "shown": "a [[| -> &]] b",
  }
  text = mutants.table(
    [
      {**row, "killer": "a_test.py::b", "num_tests": 4},
      {**row, "killer": "", "num_tests": 5},
    ]
  )
  assert text.splitlines()[2:] == [
    rf"| {_PATH}:3 | operator | `a [[\| -> &]] b` | a_test.py::b |",
    rf"| {_PATH}:3 | operator | `a [[\| -> &]] b` | **survived** 5 tests |",
  ]
