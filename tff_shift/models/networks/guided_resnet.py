"""ResNet-18 for images of 32 x 32, with a guide.

Source: FedDRM, Fig. 2 and the paragraph on the architecture of its experiments:
the 512 features of ResNet-18, with one projection to 256 for the classes and
another for the clients. The rest of the network follows the authors' program
(https://github.com/zijianwang0510/FedDRM):
  * `resnet` with the stem for small images and 16 groups in each normalisation;
  * the scale of the second normalisation of a block starts at 0, so that each
    block starts as its shortcut;
  * projections and initial weights as in `projection`.

Choices:
  * The network has 11,437,138 weights with the guide, 11,303,242 without it,
    and 2,570 of them are personal. The default of the binary is a small CNN
    (157,090); `--model=lenet` with `--sharing` has other branches.
"""

import tensorflow as tf

from tff_shift.models import guided_model
from tff_shift.models.networks import projection
from tff_shift.models.networks import resnet


def build(
  input_shape: tuple[int, ...] = (32, 32, 3),
  num_classes: int = 10,
  num_clients: int = 8,
  width: int = 64,
  groups: int = 16,
  initial_scale: float = 0.0,
  input_dtype: tf.DType = tf.uint8,
) -> guided_model.GuidedModel:
  """Builds the network.

  Args:
    input_shape: Height, width and channels of an image.
    num_classes: The number of classes.
    num_clients: The number of clients.
    width: The channels of the first of the four stages; each further stage has
      twice as many.
    groups: The number of groups of each normalisation, a divisor of `width`.
    initial_scale: The initial scale of the second normalisation of each block.
    input_dtype: `tf.uint8` for images in 0..255, else `tf.float32`.

  Returns:
    A `GuidedModel` with 8 x `width` features and an embedding of 4 x `width`.

  Raises:
    ValueError: If `groups` does not divide `width`.
  """
  feature_size, embedding_size = 8 * width, 4 * width
  return guided_model.build_guided_model(
    "guided_resnet18",
    trunk=lambda: resnet.trunk(
      input_shape,
      stem="cifar",
      width=width,
      groups=groups,
      initial_scale=initial_scale,
    ),
    target_branch=lambda: projection.target_branch(
      feature_size, embedding_size
    ),
    head=lambda: projection.head(embedding_size, num_classes),
    client_branch=lambda: projection.client_branch(
      feature_size, embedding_size, num_clients
    ),
    input_dtype=input_dtype,
  )
