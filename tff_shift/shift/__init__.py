"""Measures of distribution shift in a client's data, without labels.

Read in this order: `bbse` (label distribution of unlabelled data), `dynamics`
(the shift signal of Fed-ADE and its learning rate), `measures` (other ways to
compare two time steps) and `change_point` (the only one with a memory). These
are pure TensorFlow functions of tensors, which become part of a client's
computation. `distances` (distances between periods, and the drift threshold)
and `representations` (descriptions of a period's data for a hypernetwork) are
plain NumPy.
"""
