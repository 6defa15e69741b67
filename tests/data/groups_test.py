"""Groups of rows, such as patients, stay on one side of every split."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pandas
import pytest
from numpy.testing import assert_array_equal
from sklearn import model_selection

import tff_shift as ts
from tff_shift.data import partition
from tff_shift.data import sources
from tff_shift.data import table
from tff_shift.data.shifts import evolving
from tff_shift.data.shifts import guidance
from tff_shift.serving import columns

ROLES = {"label": "y", "client": "c", "time": "t"}
SEEDS = st.integers(0, 2**31)


def make_frame(num_patients=60, size=600, seed=0):
  """Patients of any client, at any time; the feature is their number."""
  rng = np.random.default_rng(seed)
  number = rng.integers(0, num_patients, size)
  frame = pandas.DataFrame({"code": number * 1.0, "y": np.arange(size) % 2})
  frame["c"] = rng.choice(["p", "q", "r"], size)
  frame["t"] = rng.integers(0, 4, size)
  frame["patient"] = [f"no {code}" for code in number]
  return frame


class TestCut:
  def test_groups_fill_the_parts_in_their_order(self):
    # Of 8 rows, 2 are wanted in the first part and 3 in the second: group 5
    # begins at row 0, group 7 at 1, group 2 at 4 and group 9 at 7.
    groups = np.array([5, 7, 7, 7, 2, 2, 2, 9])
    parts = partition.cut(np.arange(8), [2, 3], groups)
    assert [part.tolist() for part in parts] == [
      [0, 1, 2, 3],
      [4, 5, 6],
      [7],
    ]

  def test_groups_keep_their_sides(self):
    groups = np.array([0, 0, 1, 2, 3, 3])
    sides = np.array([-1, 0, 1, -1, 1])
    # Group 1 is the one row wanted for testing, and 2 is for training.
    test, train = partition.cut(np.arange(6), [1], groups, sides)
    assert (test.tolist(), train.tolist()) == ([2], [0, 1, 3, 4, 5])
    assert sides.tolist() == [1, 0, 1, 1, 1]

  @hypothesis.given(
    groups=st.lists(st.integers(0, 9), min_size=1, max_size=60),
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    known=st.lists(st.integers(-1, 1), min_size=10, max_size=10),
    seed=SEEDS,
  )
  def test_parts_divide_no_group(self, groups, sizes, known, seed):
    groups, known = np.array(groups), np.array(known)
    hypothesis.assume(sum(sizes) < len(groups))
    order = np.random.default_rng(seed).permutation(len(groups))
    sides = known.copy()
    parts = partition.cut(order, sizes, groups, sides)
    assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(groups)))
    for at, part in enumerate(parts):
      assert (sides[groups[part]] == at).all()
    was_known = known >= 0
    assert_array_equal(sides[was_known], known[was_known])
    if not was_known[groups].any():
      assert len(parts[-1])
      for part, size in zip(parts, sizes, strict=False):
        assert len(part) < size + np.bincount(groups).max() or not len(part)

  @hypothesis.given(
    size=st.integers(1, 40), fraction=st.floats(0.05, 0.95), seed=st.integers(0)
  )
  def test_groups_of_one_row_change_nothing(self, size, fraction, seed):
    indices = np.arange(size)
    alone, grouped = (
      partition.split_train_test(indices, fraction, seed, groups)
      for groups in (None, 7 * indices)
    )
    for one, other in zip(alone, grouped, strict=True):
      assert_array_equal(one, other)

  def test_as_many_groups_as_scikit_learn(self):
    # 40 groups of 5 rows; a quarter is for testing.
    groups = np.repeat(np.arange(40), 5)
    rule = model_selection.GroupShuffleSplit(1, test_size=0.25, random_state=0)
    _, expected = next(rule.split(groups, groups=groups))
    for seed in range(20):
      _, test = partition.split_train_test(np.arange(200), 0.25, seed, groups)
      assert len(np.unique(groups[test])) == len(np.unique(groups[expected]))


def codes(*parts):
  """The patients of examples, by their feature."""
  return set(np.concatenate([np.ravel(x) for x in parts]).tolist())


def load(scenario, name, seed):
  """Returns for each part of a drawn split the patients in it."""
  has_times, has_clients = "time=" in name, "client=" in name
  if scenario == "evolving":
    dataset = ts.load_evolving(
      name, seed=seed, angle_step=None if has_times else 0
    )
    clients = ts.assemble_clients(dataset, num_clients=3, seed=seed)
    if not has_times:
      return [codes(domain.x) for domain in dataset.domains]
    return [
      codes(*(client.train.x for client in clients)),
      codes(*(c.test.x[: c.test.domain_sizes[:-1].sum()] for c in clients)),
    ]
  if scenario == "guidance":
    dataset = ts.load_guidance(
      name,
      num_clients=3,
      partition=None if has_clients else "dirichlet_inf",
      seed=seed,
    )
    held = guidance.held_out_validation(dataset, seed)
    parts = held.train, held.test, dataset.test
    return [codes(*(client.x for client in part)) for part in parts]
  if scenario == "online_adaptation":
    dataset = ts.load_online_adaptation(
      name,
      seed=seed,
      num_clients=3 if has_times else None,
      pretraining_distribution="uniform",
    )
    parts = [dataset.pretraining, dataset.validation, dataset.initial]
  else:
    dataset = ts.load_dynamic_personalization(
      name, seed=seed, num_clients=3 if has_times else None
    )
    parts = [dataset.train, dataset.validation, dataset.public]
  if not has_times:
    parts.append(getattr(dataset, "stream", None) or dataset.test)
  return [codes(part.x) for part in parts]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
  """Returns `tables(*roles)`, the name of a table with these columns."""

  def name(*roles, frame=None, **options):
    path = tmp_path_factory.mktemp("tables") / "t.csv"
    frame = make_frame() if frame is None else frame
    used = ["code", "patient", *(ROLES[role] for role in roles)]
    frame[used].to_csv(path, index=False)
    return sources.with_options(
      str(path), {role: ROLES[role] for role in roles} | options
    )

  return name


@pytest.mark.parametrize("has_clients", [True, False])
@pytest.mark.parametrize(
  "scenario, has_times",
  [
    ("guidance", False),
    *(
      (scenario, has_times)
      for scenario in (
        "evolving",
        "online_adaptation",
        "dynamic_personalization",
      )
      for has_times in (True, False)
    ),
  ],
)
def test_no_patient_is_in_two_parts(tables, scenario, has_times, has_clients):
  roles = ["label"] + ["client"] * has_clients + ["time"] * has_times
  name = tables(*roles, group="patient")
  for seed in range(3):
    parts = load(scenario, name, seed)
    assert all(parts)
    everyone = [patient for part in parts for patient in part]
    assert len(everyone) == len(set(everyone))
    assert load(scenario, name, seed) == parts
  # Without groups they are.
  first, second, *_ = load(scenario, tables(*roles, drop="patient"), 0)
  assert first & second


@hypothesis.settings(max_examples=20)
@hypothesis.given(seed=SEEDS, fraction=st.floats(0.1, 0.5))
def test_domains_share_the_sides_of_patients(seed, fraction):
  clients, schema = ts.from_dataframe(
    "evolving",
    make_frame(),
    **ROLES,
    group="patient",
    test_fraction=fraction,
    seed=seed,
  )
  assert schema.features == ("code",) and schema.group == "patient"
  train = codes(*(client.train.x for client in clients))
  sources_of = [
    (client.test.x, client.test.domain_sizes[:-1].sum()) for client in clients
  ]
  test = codes(*(x[:size] for x, size in sources_of))
  assert train and test and not train & test
  # About the fraction of the rows, less or more a patient in each domain.
  num_test = sum(size for _, size in sources_of)
  num_source = num_test + sum(len(client.train.y) for client in clients)
  assert abs(num_test / num_source - fraction) < 0.15
  # Time separates the target: almost all patients are there, too.
  sides = evolving.groups_of(clients)
  both = set(np.concatenate(sides.train)) & set(np.concatenate(sides.test))
  target = codes(*(x[size:] for x, size in sources_of))
  assert len(both) == len(train & target)


def test_guidance_from_python(refusal):
  frame = make_frame().drop(columns="t")
  roles = {"label": "y", "client": "c", "group": "patient"}
  data, _ = ts.from_dataframe("guidance", frame, **roles)
  train, test = (codes(*(client.x for client in part)) for part in data)
  assert train and test and not train & test
  frame["patient"] = frame["c"]
  assert refusal(
    ts.from_dataframe, "guidance", frame[frame.c == "p"], **roles
  ) == (
    "client 'p': test_fraction 0.3 of 198 examples in 1 groups of 'patient'"
    " leaves none to test"
  )
  assert refusal(
    ts.from_dataframe, "guidance", frame, **roles, keep_copies_together=True
  ) == (
    "keep_copies_together does not apply to group='patient', which keeps"
    " examples together; leave it out"
  )


def test_group_of_a_users_table():
  content = table.Table(
    np.zeros((4, 1)),
    np.array([0, 1, 0, 1]),
    table.Schema(),
    group=np.array([2**40, 7, 2**40, -1]),
  )
  validated = table.validate(content, "mine")
  assert validated.group.tolist() == [2, 1, 2, 0]
  assert validated.schema.group == "group"


@pytest.mark.parametrize(
  "changes, options, message",
  [
    ({}, {"group": "y"}, "label='y' has another role too"),
    ({}, {"features": ["code", "patient"]}, "features: 'patient' is the group"),
    ({}, {"drop": ["patient"]}, "drop='patient' has another role too"),
    (
      {"patient": None},
      {},
      "group 'patient' has missing values, the first in row 0",
    ),
    (
      {"patient": "one"},
      {},
      "group 'patient' of own data: no client has a test example in a source"
      " domain, because no domain of a client has two groups; use fewer clients"
      " or fewer domains",
    ),
  ],
)
def test_wrong_groups_are_refused(changes, options, message, refusal):
  frame = make_frame().assign(**changes)
  options = {"group": "patient", **ROLES, **options}
  line = refusal(ts.from_dataframe, "evolving", frame, **options)
  assert line.startswith(message)


@pytest.mark.parametrize(
  "scenario, roles, message",
  [
    ("evolving", ["label"], "groups are too few, or too large, for 8 domains"),
    ("guidance", ["label"], "client 0 would have no validation example: it"),
    ("guidance", ["label", "client"], "no client has both a training and a"),
    ("online_adaptation", ["label"], "600 examples in 2 groups of 'patient',"),
    ("online_adaptation", ["label", "time"], "in 2 groups of 'patient', too"),
    (
      "dynamic_personalization",
      ["label"],
      "got 600 examples in 2 groups of 'patient'",
    ),
    ("dynamic_personalization", ["label", "time"], "in 2 groups of 'patient'"),
  ],
)
def test_too_few_groups_are_refused(tables, scenario, roles, message, refusal):
  frame = make_frame()
  # Two groups; each client has rows of one.
  frame["patient"] = frame["c"] == "p"
  name = tables(*roles, frame=frame, group="patient")
  assert message in refusal(load, scenario, name, 0)


def test_prediction_takes_the_column_or_not():
  schema = table.Schema(features=("code",), label="y", group="patient")
  frame = make_frame()[["patient", "code"]]
  for rows in (frame, frame[["code"]]):
    assert_array_equal(
      columns.matched(rows, schema)[:, 0], frame["code"].to_numpy(np.float32)
    )
