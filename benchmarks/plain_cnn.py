"""The network of the speed measurements in plain TensorFlow."""

import tensorflow as tf


def logits(weights, images) -> tf.Tensor:
  """Four convolutions, their mean over the image, two dense layers.

  Args:
    weights: Kernel and bias of each layer, in order, 12 float32 tensors.
    images: [batch, 32, 32, 3] float32, or uint8 in 0..255.

  Returns:
    [batch, classes] float32.
  """
  hidden = tf.image.convert_image_dtype(images, tf.float32)
  for layer, stride in enumerate((1, 2, 2, 1)):
    kernel, bias = weights[2 * layer], weights[2 * layer + 1]
    hidden = tf.nn.relu(tf.nn.conv2d(hidden, kernel, stride, "SAME") + bias)
  hidden = tf.reduce_mean(hidden, [1, 2])
  hidden = tf.nn.relu(tf.matmul(hidden, weights[8]) + weights[9])
  return tf.matmul(hidden, weights[10]) + weights[11]
