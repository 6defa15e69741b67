"""The choices of shift measures and of reactions to drift.

This module does not import TensorFlow: command lines build their flags from it.
"""

# The representation of a period's data as a vector r, see `representations`.
REPRESENTATIONS = ("t_sne", "t_sne_map", "moments", "pca")

# The features of the distance between two periods, see
# `scenarios.dynamic_personalization.drift_detector`.
FEATURES = ("pixels", "extractor")

# next: a model for a drift is used from the next period on. current: the period
# that showed the drift is predicted again.
APPLY_UPDATES = ("next", "current")
