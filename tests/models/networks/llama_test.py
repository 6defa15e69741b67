"""Tests of Llama, beside transformers, and of adapters beside dense sums."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures.arrays import assert_close
from tff_shift.data.texts import tokens as tokens_lib
from tff_shift.models.networks import llama
from tff_shift.models.networks import llama_checkpoint

_DATA = pathlib.Path(__file__).with_name("data")
SCALED = llama_checkpoint.RopeScaling(
  factor=32.0, low_frequency=1.0, high_frequency=4.0, original_length=16
)
TARGETS = tf.constant([4, 17])
SCALE = 2.0
# Of what adapters give.
SIZES = {"query": 32, "key": 16, "value": 16}


def config_of(kind):
  return llama_checkpoint.Config(
    vocabulary_size=64,
    width=32,
    num_layers=2,
    num_heads=4,
    num_key_value_heads=2,
    head_size=8,
    mlp_width=48,
    rope_theta=500000.0,
    norm_epsilon=1e-5,
    rope_scaling=SCALED if kind == "llama3" else None,
  )


@pytest.fixture(scope="module", params=["plain", "llama3"])
def oracle(request):
  """The numbers of transformers, see data/README.md."""
  with np.load(_DATA / f"oracle_{request.param}.npz") as arrays:
    return request.param, dict(arrays)


@pytest.fixture(scope="module")
def case(oracle):
  """The network, its weights and the tokens of the oracle."""
  kind, arrays = oracle
  config = config_of(kind)
  weights = {
    name: arrays[f"w:{name}"]
    if "embed" in name
    else np.ascontiguousarray(arrays[f"w:{name}"].T)
    for name in config.shapes()
  }
  return (
    config,
    llama_checkpoint.arrange(config, weights),
    tf.constant(arrays["x"], tf.int32),
  )


def tied_logits(base, states):
  embedding = tf.cast(base.embedding, tf.float32)
  return tf.einsum("...w,vw->...v", states, embedding)


def loss_of(case, adapters, scale, base=None):
  config, own_base, tokens = case
  base = own_base if base is None else base
  states = llama.hidden_states(config, base, adapters, scale, tokens)
  last = llama.last_hidden_state(states, tokens)
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(
      TARGETS, tied_logits(base, last)
    )
  )


def draw_adapters(config, rank, seed=0, up=1.0):
  """Adapters of the first layer; with up=0 they change nothing."""
  generator = np.random.default_rng(seed)
  assert config.num_heads * config.head_size == 32
  return (
    {
      name: llama.Adapter(
        tf.constant(generator.normal(0, 0.1, [32, rank]), tf.float32),
        tf.constant(up * generator.normal(0, 0.1, [rank, size]), tf.float32),
      )
      for name, size in SIZES.items()
    },
  )


def gradients_of(case, adapters, scale, base=None):
  flat = tf.nest.flatten(adapters)
  with tf.GradientTape() as tape:
    tape.watch(flat)
    loss = loss_of(case, adapters, scale, base)
  found = tape.gradient(loss, flat)
  return tf.nest.pack_sequence_as(adapters, found)[0]


def dense_gradients(case, base=None):
  """Gradients at whole matrices: those of B where A is the identity, B zero."""
  eye = (
    {
      name: llama.Adapter(tf.eye(32), tf.zeros([32, size]))
      for name, size in SIZES.items()
    },
  )
  found = gradients_of(case, eye, 1.0, base)
  return {name: found[name].up for name in llama.ADAPTED}


class TestBesideTransformers:
  def test_logits_and_loss_are_the_same(self, oracle, case):
    _, arrays = oracle
    config, base, tokens = case
    states = llama.hidden_states(config, base, (), 1.0, tokens)
    assert_close(tied_logits(base, states), arrays["logits"], 0, 1e-5)
    assert abs(float(loss_of(case, (), 1.0)) - arrays["loss"]) < 1e-6

  def test_gradient_of_a_query_matrix_is_the_same(self, oracle, case):
    _, arrays = oracle
    assert_close(dense_gradients(case)["query"], arrays["gq0"].T, 0, 1e-6)
    assert np.abs(arrays["gq0"]).max() > 1e-4

  def test_kinds_of_positions_differ(self):
    plain, scaled = map(llama.frequencies, map(config_of, ("plain", "llama3")))
    # 16 tokens are 2.5 turns of the fastest pair, 0.1 of the next: between 1
    # and 4 turns a mixture, below 1 all is slowed down.
    turns = 16 / (2 * np.pi)
    kept = (turns - 1) / 3
    assert plain[0] == 1
    assert_close(scaled[0], kept + (1 - kept) / 32)
    assert_close(scaled[1:], plain[1:] / 32)


class TestAdapters:
  def test_start_leaves_the_base_bit_for_bit(self, case):
    config, base, tokens = case
    states = [
      llama.hidden_states(config, base, adapters, SCALE, tokens).numpy()
      for adapters in ((), draw_adapters(config, 3, up=0.0))
    ]
    assert states[0].tobytes() == states[1].tobytes()

  def test_model_is_that_of_the_dense_sums_and_so_are_gradients(self, case):
    config, base, _ = case
    adapters = draw_adapters(config, rank=3)
    first = base.layers[0]
    merged = {
      name: getattr(first, name) + SCALE * (pair.down @ pair.up)
      for name, pair in adapters[0].items()
    }
    dense = base._replace(layers=(first._replace(**merged), base.layers[1]))
    of_base, with_adapters, of_dense = (
      float(loss_of(case, *arguments))
      for arguments in (((), 1.0), (adapters, SCALE), ((), 1.0, dense))
    )
    assert abs(with_adapters - of_dense) < 1e-5 < abs(of_base - of_dense)
    expected = dense_gradients(case, dense)
    for name, found in gradients_of(case, adapters, SCALE).items():
      pair = adapters[0][name]
      for one, other in (
        (found.down, SCALE * expected[name] @ tf.transpose(pair.up)),
        (found.up, SCALE * tf.transpose(pair.down) @ expected[name]),
      ):
        assert_close(one, other, 0, 2e-6)
        assert np.abs(one).max() > 2e-5

  def test_their_number_is_that_of_the_paper(self):
    config = llama_checkpoint.Config(
      vocabulary_size=128256,
      width=3072,
      num_layers=28,
      num_heads=24,
      num_key_value_heads=8,
      head_size=128,
      mlp_width=8192,
    )
    part = llama.make_backbone(config, None, rank=8, alpha=16.0)
    # Layers 0 to 13: 14 (3072 r + 3072 r + 2 (3072 r + 1024 r)).
    assert part.num_parameters == 14 * 14336 * 8
    assert part.names[0] == "layer0_query/down"
    assert part.names[-1] == "layer13_value/up"
    total = sum(map(np.prod, config.shapes().values()))
    assert total == 3_212_749_824


class TestExamples:
  def test_more_padding_changes_nothing(self, case):
    config, base, tokens = case
    short = np.full((2, 6), tokens_lib.PADDING, np.int32)
    short[0], short[1, :4] = tokens[0, :6], tokens[1, :4]
    longer = np.pad(short, ((0, 0), (0, 5)), constant_values=tokens_lib.PADDING)
    one, other = (
      llama.last_hidden_state(
        llama.hidden_states(config, base, (), 1.0, each), each
      )
      for each in map(tf.constant, (short, longer))
    )
    assert_close(one, other, 0, 2e-6)
    alone = tf.constant(short[1:, :4])
    states = llama.hidden_states(config, base, (), 1.0, alone)
    assert_close(one[1], states[0, 3], 0, 2e-6)

  def test_bfloat16_counts_as_the_same_numbers_in_float32(self, case):
    config, base, tokens = case
    halves = tf.nest.map_structure(lambda w: tf.cast(w, tf.bfloat16), base)
    floats = tf.nest.map_structure(lambda w: tf.cast(w, tf.float32), halves)
    adapters = draw_adapters(config, 3)
    of_halves, of_floats = (
      (
        llama.hidden_states(config, each, adapters, SCALE, tokens),
        gradients_of(case, adapters, SCALE, each)["value"].down,
      )
      for each in (halves, floats)
    )
    for one, other in zip(of_halves, of_floats, strict=True):
      assert one.dtype == tf.float32
      assert one.numpy().tobytes() == other.numpy().tobytes()


def test_each_matrix_of_the_base_is_cast_when_it_is_needed():
  # Else all would be there in float32 at once, twice the size of the base.
  config = config_of("plain")
  with tf.Graph().as_default() as graph:

    def given(shape, dtype):
      return tf.compat.v1.placeholder(dtype, shape)

    weights = {
      name: given(shape if "embed" in name else shape[::-1], tf.bfloat16)
      for name, shape in config.shapes().items()
    }
    base = llama_checkpoint.arrange(config, weights)
    adapters = (
      {
        name: llama.Adapter(
          given([32, 2], tf.float32), given([2, size], tf.float32)
        )
        for name, size in SIZES.items()
      },
    )
    states = llama.hidden_states(
      config, base, adapters, SCALE, given([2, 4], tf.int32)
    )
    assert None not in tf.gradients(states, tf.nest.flatten(adapters))
    operations = graph.get_operations()
    assert tf.gradients(states, base.layers[0].gate) == [None]
  matrices = [
    operation
    for operation in operations
    if operation.type == "Cast"
    and operation.inputs[0].dtype == tf.bfloat16
    and operation.inputs[0].shape.rank == 2
    and operation.inputs[0].op.type != "GatherV2"
  ]
  # Two layers of seven matrices and, for the gradient, all above the adapters:
  # of the first layer the output and three of the MLP, of the second seven.
  assert len(matrices) == 2 * 7 + 4 + 7
  assert all(each.control_inputs for each in matrices)
