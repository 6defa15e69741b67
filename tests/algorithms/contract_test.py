"""What every algorithm owes to the template, whatever it does.

A new file in `tff_shift/algorithms` is tested here without a change. Those that
have something new in their form are always tested, see `forms`; the others have
the mark `every_algorithm`. The tests themselves are the package's: `python -m
tff_shift.testing` runs them over the file of a user.
"""

import pytest

from tff_shift import algorithms
from tff_shift.testing import contract_absent_clients
from tff_shift.testing import contract_aggregators
from tff_shift.testing import contract_exports
from tff_shift.testing import contract_file
from tff_shift.testing import contract_form
from tff_shift.testing import contract_privacy
from tff_shift.testing import contract_rounds
from tff_shift.testing import fixtures
from tff_shift.testing import forms

# Those of `make test-fast`: `make test` has all forms.
_FAST = "ada_bn", "fed_as"


def pytest_generate_tests(metafunc):
  names = algorithms.names()
  # What its file alone tells takes no time.
  if metafunc.cls not in (TestCode, TestHyperParameters):
    names = [
      pytest.param(name, marks=pytest.mark.slow)
      if isinstance(name, str) and name not in _FAST
      else name
      for name in forms.parameters(names)
    ]
  fixtures.parametrize(metafunc, names)


# Fixtures; other tests here have others of these names.
built = fixtures.built
evaluation_data = fixtures.evaluation_data
data = fixtures.data
other_data = fixtures.other_data
incomplete_data = contract_absent_clients.incomplete_data
run = contract_rounds.run
aggregators = contract_aggregators.aggregators
exported = contract_exports.exported
algorithm = contract_privacy.algorithm
aggregated = contract_privacy.aggregated

TestCode = contract_file.TestCode
TestHyperParameters = contract_file.TestHyperParameters
TestForm = contract_form.TestForm
TestRounds = contract_rounds.TestRounds
TestWorkAlone = contract_rounds.TestWorkAlone
TestRoundsWithAbsentClients = (
  contract_absent_clients.TestRoundsWithAbsentClients
)
TestEvolvingWithAbsentClients = (
  contract_absent_clients.TestEvolvingWithAbsentClients
)
TestAggregators = contract_aggregators.TestAggregators
TestExports = contract_exports.TestExports
TestPrivacyByType = contract_privacy.TestPrivacyByType
test_round_agrees_with_the_cpp_executor = (
  contract_rounds.test_round_agrees_with_the_cpp_executor
)
