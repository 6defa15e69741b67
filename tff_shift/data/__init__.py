"""Data of the scenarios, as plain NumPy arrays.

Read in this order: `sources` (a named data set as it is), `transforms` (what
happens to its images), `partition` (who gets which example), `domains`
(evolving domains, and the clients that hold them). Nothing here knows a model,
and nothing imports TensorFlow before a data set needs it.
"""
