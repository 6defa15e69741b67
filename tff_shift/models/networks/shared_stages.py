"""How many stages of a network its two tasks may share, see `lenet`.

Does not import TensorFlow: command lines define and check their flags by it.
"""

# Two convolutions, then the linear layers.
SHARED_STAGES = {"none": 0, "shallow": 1, "mid": 2, "deep": 3}
