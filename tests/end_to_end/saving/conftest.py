"""What tests of the files share from which a run goes on."""

import functools

import pytest

from experiments import comparison
from tff_shift import execution


@pytest.fixture(scope="module", autouse=True)
def built_once():
  """An algorithm that several runs of a module have is built and compiled once.

  That is most of what a small run takes, and not what is tested here. What is
  shared has no state: it is what another process would build again.
  """
  build, built = comparison.Comparison.build, {}

  def build_once(self, contestant, model=None, **options):
    aggregator = self.plan.aggregators[contestant.algorithm]
    # What has weights or factories of its own is not compared.
    if model is not None or not (
      aggregator is None or aggregator.traits.is_mean
    ):
      return build(self, contestant, model, **options)
    own = self.plan.model
    key = (
      contestant.algorithm,
      contestant.hparams,
      (own.name, own.input_shape, own.input_dtype, own.input_scaling),
      *(tuple(map(tuple, part.shapes)) for part in (own.backbone, own.head)),
      *options.items(),
    )
    if key not in built:
      built[key] = build(self, contestant, **options)
    return built[key]

  with pytest.MonkeyPatch.context() as patches:
    patches.setattr(comparison.Comparison, "build", build_once)
    patches.setattr(execution, "use", functools.cache(execution.use))
    yield
