"""Choices of how clients measure a shift and when they act on it.

Does not import TensorFlow: command lines define and check their flags by it.
"""

# How the data of a period become a vector r, see `representations`.
REPRESENTATIONS = ("t_sne", "t_sne_map", "moments", "pca")

# What the distance of two periods compares, see
# `simulation.scenarios.drift_detector`.
FEATURES = ("pixels", "extractor")

# next: a model for a drift is used from the period after it on. current: the
# period that showed the drift is predicted again.
APPLY_UPDATES = ("next", "current")
