"""FedEvp against eq. 5 to 7, Algorithm 4 and numbers made by hand."""

import itertools

import numpy as np
import pytest

from tests.fixtures import trees
from tff_shift.algorithms import fed_evp
from tff_shift.learning import local_training
from tff_shift.learning import randomness
from tff_shift.models import split_model

pytestmark = pytest.mark.slow

ROUND_NUM = 6


@pytest.fixture(scope="module")
def clients(make_client):
  """Clients some of whose domains lack a class."""
  return [
    make_client(
      0, [6, 5, 7], [0, 0, 1, 1, 0, 1, 0, 2, 2, 0, 2, 2, 1, 0, 1, 2, 2, 1]
    ),
    make_client(1, [4, 8, 3]),
  ]


def train_oracle(oracle, run_in_graph, weights, hparams, client):
  """Algorithm 4, lines 5 to 25, in NumPy."""
  num_domains = len(client.domain_sizes)

  def draw_batches(data):
    seed = randomness.fold(data.seed, randomness.Purpose.TRAIN, ROUND_NUM)
    return [
      [
        local_training.domain_batches(
          data, visit + 1, hparams.batch_size, seed
        )(domain, visit)
        for domain in range(num_domains)
      ]
      for visit in range(hparams.local_steps)
    ]

  parts = np.split(client.y, np.cumsum(client.domain_sizes)[:-1])
  classes = [
    set(part.tolist()) if hparams.softmax_classes == "domain" else None
    for part in parts
  ]
  losses = []
  for sweep in run_in_graph(draw_batches, client):
    weights, loss = sweep_oracle(oracle, weights, hparams, sweep, classes)
    losses.append(loss)
  return weights, np.mean(losses)


def sweep_oracle(oracle, weights, hparams, batches, classes):
  first, *others = batches
  # The first domain starts the prototypes and no more.
  running = oracle.class_means(oracle.embed(weights.backbone, first.x), first.y)
  losses = []
  for position, batch in enumerate(others):
    m = position + 2

    def update(backbone, running=running, batch=batch, m=m):
      means = oracle.class_means(oracle.embed(backbone, batch.x), batch.y)
      return running | {
        c: (m - 1) / m * running[c] + mean / m if c in running else mean
        for c, mean in means.items()
      }

    def loss(w, running=running, batch=batch, update=update, m=m):
      targets = (
        update(w.backbone) if hparams.prototype == "current" else running
      )
      embeddings = oracle.embed(w.backbone, batch.x)
      return oracle.alignment_loss(
        embeddings, batch.y, targets, hparams.distance, classes[m - 1]
      ) + oracle.cross_entropy(oracle.classify(w.head, embeddings), batch.y)

    running = update(weights.backbone)
    weights, value = oracle.descend(weights, [loss], hparams.learning_rate)
    losses.append(value)
  return weights, np.mean(losses)


@pytest.mark.parametrize(
  "prototype, distance, softmax_classes",
  [
    ("current", "l2", "batch"),
    ("current", "squared_l2", "domain"),
    ("previous", "cosine", "batch"),
  ],
)
def test_training_sweeps_over_domains_agree_with_the_oracle(
  build, clients, oracle, run_in_graph, prototype, distance, softmax_classes
):
  hparams = fed_evp.HParams(
    local_steps=2,
    batch_size=4,
    learning_rate=0.2,
    prototype=prototype,
    distance=distance,
    softmax_classes=softmax_classes,
  )
  functions = build(hparams)
  weights = functions.initial_weights(clients[0].seed)
  result = functions.train_client(weights, (), clients[0], ROUND_NUM)
  expected, mean_loss = train_oracle(
    oracle, run_in_graph, weights, hparams, clients[0]
  )
  update = trees.subtract(expected, weights)
  for part in update:
    assert trees.largest(part) > 1e-2
  oracle.check(result, weights, expected, mean_loss)
  assert result.client_state == ()


# Three layers of the backbone, two of the head.
LAYERS = tuple(
  f"layer{i}/{kind}" for i in range(1, 6) for kind in ("kernel", "bias")
)
PERSONALIZED = {
  "default": LAYERS[4:],
  "none": (),
  "classifier": LAYERS[6:],
  "all": LAYERS,
}


@pytest.mark.parametrize("personalization", PERSONALIZED)
def test_personalization_weights_that_change(deep_model, personalization):
  chosen = fed_evp.personal_weights(deep_model, personalization)
  names = (*deep_model.backbone.names, *deep_model.head.names)
  changed = tuple(itertools.compress(names, trees.leaves(chosen)))
  assert changed == PERSONALIZED[personalization]


@pytest.mark.parametrize(
  "personalization, num_epochs",
  [("classifier", 1), ("default", 0), ("default", 2)],
)
def test_personalization_client_predicts_with_its_personal_weights(
  build, deep_model, clients, oracle, personalization, num_epochs
):
  functions = build(
    fed_evp.HParams(
      batch_size=6,
      learning_rate=0.3,
      personalization=personalization,
      personalization_epochs=num_epochs,
    ),
    model=deep_model,
  )
  client, examples = clients
  weights = functions.initial_weights(client.seed)
  # What a client has prepared is all that it needs of its data.
  prepared = functions.prepare_client(weights, (), client, 0)
  logits = functions.predict_as_client(weights, prepared, examples, examples)
  chosen = split_model.SplitWeights(
    *(
      tuple(name in PERSONALIZED[personalization] for name in names)
      for names in (deep_model.backbone.names, deep_model.head.names)
    )
  )
  # 18 examples are three batches of 6.
  batches = oracle.batches(
    client, 3 * num_epochs, randomness.Purpose.PERSONALIZE, size=6
  )
  if num_epochs:
    weights, _ = oracle.descend(weights, oracle.losses(batches), 0.3, chosen)
  np.testing.assert_allclose(
    logits, oracle.predict(weights, examples.x), atol=1e-5
  )
