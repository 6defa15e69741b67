"""Hyper-parameters that an algorithm would ignore, or cannot have."""

import pytest

from tests.fixtures import refusals
from tff_shift import algorithms
from tff_shift.testing import forms


@pytest.mark.parametrize(
  "name, options, message",
  [
    ("ada_bn", {}, "would predict like source"),
    ("fed_ade", {"eta_min": 0.2, "eta_max": 0.1}, "eta_max=0.1.*eta_min=0.2"),
    (
      "fed_ade",
      {"use_uncertainty": False, "use_representation": False},
      "use_uncertainty=False.*use_representation",
    ),
    (
      "fed_ade",
      {"correct_batch_noise": True, "similarity": "wasserstein"},
      "correct_batch_noise=True.*similarity='wasserstein'",
    ),
    (
      "fed_ade",
      {"correct_batch_noise": True, "summary": "histogram"},
      "correct_batch_noise=True.*summary=softmax",
    ),
    (
      "fed_ade",
      {"reference": "ema", "compare": "rounds"},
      "compare=rounds.*ema",
    ),
    (
      "fed_ade",
      {"reference_share": 0.5},
      r"reference_share=0\.5.*reference=ema",
    ),
    ("fed_ade", {"stream_steps": 3}, "stream_steps=3.*objective=entropy"),
    (
      "fed_ade",
      {"running_statistics": "moving"},
      "running_statistics=moving.*'two_layers'.*mini_resnet",
    ),
    (
      "fed_ade",
      {"variant": "program"},
      "running_statistics=moving.*'two_layers'",
    ),
    (
      "fed_drift",
      {"eager": True, "merge_threshold": 0.3},
      "merge_threshold=0.3 is not allowed with eager",
    ),
    ("fed_dyn", {"alpha": 0.0}, "alpha=0.0 is not allowed.*must be"),
    (
      "fed_dyn",
      {"client_weighting": "num_examples"},
      "client_weighting=num_examples is not allowed.*must be",
    ),
    (
      "fed_dyn",
      {"personal_norm": "all"},
      "personal_norm=all is not allowed.*must be",
    ),
    (
      "fed_nova",
      {"optimizer": "adam"},
      "optimizer=adam is not allowed.*must be",
    ),
    (
      "fed_nova",
      {"personal_norm": "all"},
      "personal_norm=all is not allowed.*must be",
    ),
    ("fed_the", {"plus": True}, "fed_the with --plus.*uint8"),
    (
      "flux",
      {"cluster_distance": 2.0},
      "cluster_distance=2.0 is not allowed with eps=elbow",
    ),
    (
      "flux",
      {"eps": "fixed", "elbow_factor": 2.0},
      "elbow_factor=2.0 is not allowed with eps=fixed",
    ),
    ("memo", {}, r"^memo without .*float32 \[5\]$"),
    (
      "per_fed_avg",
      {"hessian": "first_order", "hessian_delta": 0.1},
      "hessian_delta=0.1 is not allowed with hessian=first_order",
    ),
    (
      "prior_correction",
      {"em_passes": 3},
      "em_passes=3 is not allowed with estimator=bbse",
    ),
    (
      "prior_correction",
      {"window": 3},
      "window=3 is not allowed with memory=flh_ftl",
    ),
    (
      "prior_correction",
      {"memory": "none", "max_experts": 3},
      "it belongs to memory=flh_ftl",
    ),
    (
      "scaffold",
      {"momentum": 0.9},
      "optimizer=sgd with momentum=0.9 .*scaffold.*must be",
    ),
    ("scaffold", {"optimizer": "adam"}, "optimizer=adam .*scaffold.*must be"),
    (
      "scaffold",
      {"client_weighting": "num_examples"},
      "client_weighting=num_examples .*scaffold.*must be",
    ),
    (
      "scaffold",
      {"personal_norm": "all"},
      "personal_norm=all .*scaffold.*must be",
    ),
    ("tent", {}, "adapted=norm finds no scales and shifts .* 'two_layers'"),
    (
      "tent",
      {"adapted": "all", "excluded_layers": 9},
      "excluded_layers=9 leaves no scales",
    ),
  ],
)
def test_in_one_line(model, name, options, message):
  check(model, name, options, message)


@pytest.mark.parametrize(
  "name, options, message",
  [
    (
      "ada_bn",
      {"statistics_of": "stream", "source_examples": 3.0},
      "source_examples=3.0 is not allowed with statistics_of=stream",
    ),
    ("ada_bn", {"scored": "before"}, "it belongs to statistics_of=stream"),
    (
      "tent",
      {"momentum": 0.9},
      "momentum=0.9 is not allowed with optimizer=adam",
    ),
    ("tent", {"rho": 0.1}, "rho=0.1 is not allowed with rule=tent"),
    ("tent", {"entropy_margin": 0.1}, "it belongs to rule=eata or sar"),
    ("tent", {"rule": "sar", "fisher_weight": 3.0}, "it belongs to rule=eata"),
    # Its initial weights are given.
    *(
      (name, {"num_models": 3}, f"num_models=3 is not allowed for {name} with")
      for name in ("fe_sem", "fed_em", "fed_rc", "ifca")
    ),
  ],
)
def test_with_trained_batch_normalisation(
  normalized_model, name, options, message
):
  check(normalized_model, name, options, message)


def check(model, name, options, message):
  with refusals.refused(message):
    algorithms.build(
      name,
      model,
      algorithms.hparams(name, **options),
      num_clients=forms.NUM_CLIENTS,
    )
