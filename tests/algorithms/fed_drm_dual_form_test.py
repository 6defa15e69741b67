"""Theorem 2.2 of the FedDRM paper, by numbers.

The profile log empirical likelihood (eq. 6) is maximised with its Lagrange
multipliers solved for numerically, and nothing of the theorem is used; what the
theorem says of the maximum is then compared with the minimum of the two
cross-entropies.
"""

import types

import numpy as np
import pytest
from scipy import optimize
from scipy import special

pytestmark = pytest.mark.slow

SIZES = (40, 25, 60)
NUM_FEATURES = 2
NUM_CLASSES = 3


@pytest.fixture(scope="module")
def problem():
  """Embeddings of three clients that overlap, and their classes."""
  generator = np.random.default_rng(7)
  centres = generator.normal(scale=0.6, size=(len(SIZES), NUM_FEATURES))
  clients = np.repeat(np.arange(len(SIZES)), SIZES)
  z = centres[clients] + generator.normal(size=(len(clients), NUM_FEATURES))
  logits = z @ generator.normal(size=(NUM_FEATURES, NUM_CLASSES))
  y = np.argmax(logits + generator.gumbel(size=logits.shape), axis=1)
  return types.SimpleNamespace(
    z=z, y=y, clients=clients, sizes=np.array(SIZES), total=len(clients)
  )


def tilts(parameters, problem):
  """Returns exp(gamma_l + xi_l z) at all points, without the reference.

  The first client's density is the reference: gamma_1 = 0 and xi_1 = 0, without
  which the parameters are not identified.
  """
  rows = parameters.reshape(len(SIZES) - 1, 1 + NUM_FEATURES)
  return np.exp(rows[:, 0] + problem.z @ rows[:, 1:].T)


def solve_multipliers(tilt):
  """Solves the equations below eq. 6 for rho; None where there is no p.

  They are the stationarity of a convex function of rho, which has no minimum
  where no probabilities satisfy the constraints (eq. 5).
  """

  def negative_log(rho):
    denominators = 1 + (tilt - 1) @ rho
    if denominators.min() <= 0:
      return np.inf, np.zeros_like(rho)
    ratios = (tilt - 1) / denominators[:, np.newaxis]
    return -np.sum(np.log(denominators)), -ratios.sum(axis=0)

  rho = np.zeros(tilt.shape[1])
  value, slopes = negative_log(rho)
  for _ in range(100):
    ratios = (tilt - 1) / (1 + (tilt - 1) @ rho)[:, np.newaxis]
    step = np.linalg.solve(ratios.T @ ratios, slopes)
    length = 1.0
    while length > 1e-12:
      candidate = rho - length * step
      new_value, new_slopes = negative_log(candidate)
      if new_value <= value + 1e-9:  # Rounding, near the minimum.
        break
      length /= 2
    rho, value, slopes = candidate, new_value, new_slopes
    if np.abs(slopes).max() < 1e-10:
      return rho if np.abs(rho).max() < 1e3 else None
  return None


def client_term(parameters, problem):
  """The client part of eq. 6, sum of gamma_i + xi_i z + log p, its gradient.

  Returns:
    The value, the gradient, rho and the probabilities; None without any.
  """
  tilt = tilts(parameters, problem)
  rho = solve_multipliers(tilt)
  if rho is None:
    return None
  own = np.concatenate([np.ones((problem.total, 1)), tilt], axis=1)
  own = own[np.arange(problem.total), problem.clients]
  probabilities = 1 / problem.total / (1 + (tilt - 1) @ rho)
  value = np.sum(np.log(own) + np.log(probabilities))
  # rho is stationary, so that only the parameters themselves count.
  inputs = np.concatenate([np.ones((problem.total, 1)), problem.z], axis=1)
  gradient = [
    inputs[problem.clients == client].sum(axis=0)
    - problem.total
    * rho[client - 1]
    * (probabilities * tilt[:, client - 1])
    @ inputs
    for client in range(1, len(SIZES))
  ]
  return value, np.concatenate(gradient), rho, probabilities


@pytest.fixture(scope="module")
def maximum(problem):
  """The maximum of the client part of eq. 6."""

  def negative(parameters):
    found = client_term(parameters, problem)
    if found is None:
      return 1e10, np.zeros_like(parameters)
    return -found[0], -found[1]

  # With these intercepts rho = 0 and p = 1 / N satisfy all constraints.
  slopes = 0.2 * np.random.default_rng(1).normal(
    size=(len(SIZES) - 1, NUM_FEATURES)
  )
  intercepts = -np.log(np.mean(np.exp(problem.z @ slopes.T), axis=0))
  start = np.column_stack([intercepts, slopes]).ravel()
  found = optimize.minimize(
    negative, start, jac=True, method="BFGS", options={"gtol": 1e-8}
  )
  value, gradient, rho, probabilities = client_term(found.x, problem)
  assert np.abs(gradient).max() < 1e-4
  return types.SimpleNamespace(
    parameters=found.x, value=value, rho=rho, probabilities=probabilities
  )


def test_gradient_is_that_of_the_value(problem, maximum):
  # Otherwise the maximum above would be none.
  parameters = 0.9 * maximum.parameters
  rows = parameters.reshape(len(SIZES) - 1, -1)
  rows[:, 0] = -np.log(np.mean(np.exp(problem.z @ rows[:, 1:].T), axis=0))
  _, gradient, _, _ = client_term(parameters, problem)
  differences = optimize.approx_fprime(
    parameters, lambda each: client_term(each, problem)[0], 1e-6
  )
  np.testing.assert_allclose(gradient, differences, atol=1e-2, rtol=1e-3)


def cross_entropy(logits, labels):
  log_probabilities = special.log_softmax(logits, axis=1)
  return -np.sum(log_probabilities[range(len(labels)), labels])


def smallest_cross_entropy(z, labels, num_labels):
  """Minimises the cross-entropy of a linear layer; the first label's is 0."""
  inputs = np.concatenate([np.ones((len(z), 1)), z], axis=1)

  def logits(free):
    layer = np.concatenate(
      [np.zeros((1, inputs.shape[1])), free.reshape(num_labels - 1, -1)]
    )
    return inputs @ layer.T

  def gradient(free):
    errors = special.softmax(logits(free), axis=1)
    errors[range(len(labels)), labels] -= 1
    return (errors.T @ inputs)[1:].ravel()

  found = optimize.minimize(
    lambda free: cross_entropy(logits(free), labels),
    np.zeros((num_labels - 1) * inputs.shape[1]),
    jac=gradient,
    method="BFGS",
    options={"gtol": 1e-9},
  )
  return found.fun, found.x.reshape(num_labels - 1, -1)


def test_profile_likelihood_is_the_two_cross_entropies(problem, maximum):
  of_clients, _ = smallest_cross_entropy(problem.z, problem.clients, len(SIZES))
  of_classes, _ = smallest_cross_entropy(problem.z, problem.y, NUM_CLASSES)
  # The class part of eq. 6 is a log likelihood already.
  profile = maximum.value - of_classes
  shares = problem.sizes / problem.total
  # The constant of Appendix C.4, and the N log N that it leaves out.
  constant = -np.sum(problem.sizes * np.log(shares)) - problem.total * np.log(
    problem.total
  )
  assert profile == pytest.approx(-of_clients - of_classes + constant, abs=1e-6)


def test_multipliers_are_the_shares_of_the_clients(problem, maximum):
  np.testing.assert_allclose(
    maximum.rho, problem.sizes[1:] / problem.total, atol=1e-5
  )


def test_probabilities_satisfy_the_constraints(problem, maximum):
  # Eq. 5.
  assert maximum.probabilities.min() > 0
  assert maximum.probabilities.sum() == pytest.approx(1, abs=1e-9)
  tilted = maximum.probabilities @ tilts(maximum.parameters, problem)
  np.testing.assert_allclose(tilted, 1, atol=1e-9)


def test_slopes_are_equal_and_intercepts_differ_by_the_shares(problem, maximum):
  _, layer = smallest_cross_entropy(problem.z, problem.clients, len(SIZES))
  rows = maximum.parameters.reshape(len(SIZES) - 1, -1)
  np.testing.assert_allclose(rows[:, 1:], layer[:, 1:], atol=1e-4)
  # gamma of the dual form is gamma of eq. 6 plus log(n_i / n_1).
  shift = np.log(problem.sizes[1:] / problem.sizes[0])
  np.testing.assert_allclose(rows[:, 0] + shift, layer[:, 0], atol=1e-4)


def test_away_from_the_maximum_they_differ(problem, maximum):
  # The theorem speaks of the maximum: elsewhere multipliers are no shares.
  parameters = maximum.parameters.copy()
  parameters[0] += 0.3
  _, _, rho, _ = client_term(parameters, problem)
  assert np.abs(rho - problem.sizes[1:] / problem.total).max() > 0.01
