"""Linear layers with layer normalisation: building blocks of guided models.

Source: FedDRM, Fig. 2 and the paragraph on the architecture of its experiments:
a projection and a linear layer for each of the two tasks. The paper does not
specify normalisation, activation and initial weights; here they follow the
authors' program (https://github.com/zijianwang0510/FedDRM): layer normalisation
and ReLU; kernels from a normal distribution of variance 2 / inputs (Kaiming),
biases of zero.
"""

from typing import Any

import tensorflow as tf

from tff_shift.models.keras import fixed_layers as layers

# The authors' value; Keras's default is 1e-3.
_EPSILON = 1e-5


def linear(x, units: int, *, name: str, **initializers: Any):
  """Applies a linear layer to a Keras tensor [batch, features].

  Args:
    x: The Keras tensor.
    units: The number of outputs.
    name: The layer's name.
    **initializers: `kernel_initializer` and `bias_initializer`, instead of the
      module's.

  Returns:
    A Keras tensor [batch, units].
  """
  # A new one for each layer: Keras warns of shared initializers.
  kaiming_normal = tf.keras.initializers.VarianceScaling(
    scale=2.0, mode="fan_in", distribution="untruncated_normal"
  )
  options = {"kernel_initializer": kaiming_normal} | initializers
  return layers.Dense(units, name=name, **options)(x)


def project(x, width: int, *, name: str = "projection", **initializers: Any):
  """Applies a linear layer, layer normalisation and ReLU.

  Args:
    x: A Keras tensor [batch, features].
    width: The number of outputs.
    name: The layers' names are `<name>_linear` and `<name>_normalization`.
    **initializers: `kernel_initializer` and `bias_initializer`.

  Returns:
    A Keras tensor [batch, width].
  """
  x = linear(x, width, name=f"{name}_linear", **initializers)
  x = layers.LayerNormalization(epsilon=_EPSILON, name=f"{name}_normalization")(
    x
  )
  return layers.ReLU()(x)


def target_branch(feature_size: int, width: int) -> tf.keras.Model:
  """Builds the target branch of Fig. 2: a projection of the features."""
  features = layers.Input((feature_size,))
  return tf.keras.Model(
    features, project(features, width), name="target_branch"
  )


def client_branch(
  feature_size: int, width: int, num_clients: int
) -> tf.keras.Model:
  """Builds the client branch of Fig. 2: a projection and a linear layer."""
  features = layers.Input((feature_size,))
  logits = linear(
    project(features, width), num_clients, name="client_classifier"
  )
  return tf.keras.Model(features, logits, name="client_branch")


def head(embedding_size: int, num_classes: int) -> tf.keras.Model:
  """Builds the head of Fig. 2: one linear layer with a bias."""
  embedding = layers.Input((embedding_size,))
  logits = linear(embedding, num_classes, name="classifier")
  return tf.keras.Model(embedding, logits, name="head")
