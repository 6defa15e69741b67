"""The number of stages of a network that two tasks can share, see `lenet`.

This module does not import TensorFlow: command lines build their flags from it.
"""

# Two convolutions, then the linear layers.
SHARED_STAGES = {"none": 0, "shallow": 1, "mid": 2, "deep": 3}
