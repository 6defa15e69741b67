"""Some of a structure's weights, taken and put back."""

import pytest

from tff_shift.learning import weight_masks
from tff_shift.models import split_model

WEIGHTS = split_model.SplitWeights((1, 2, 3), (4,))


@pytest.mark.parametrize(
  "chosen, taken, put",
  [
    (((True, False, True), (True,)), (1, 3, 4), ((-1, 2, -3), (-4,))),
    (((False, True, False), (False,)), (2,), ((1, -2, 3), (4,))),
    (((False,) * 3, (False,)), (), WEIGHTS),
  ],
)
def test_chosen_weights_are_taken_and_replaced_in_order(chosen, taken, put):
  assert weight_masks.take(WEIGHTS, chosen) == taken
  found = weight_masks.put(WEIGHTS, chosen, [-each for each in taken])
  assert found == put
  assert isinstance(found, split_model.SplitWeights)


def test_structures_of_other_sizes_are_refused(refusal):
  assert "shorter" in refusal(
    weight_masks.put, WEIGHTS, ((True, False, True), ()), [0, 0]
  )
