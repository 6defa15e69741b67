"""Data of the scenarios, as plain NumPy arrays.

Read in this order: `examples` (arrays, and their check where they enter),
`datasets` (a file for each data set, `dataset` says what is in it; `source` is
one that is loaded; `tfds_archives` and `image_archives` read it from the disk,
`corrupted_sources` its published corrupted images), `transforms`,
`color_transforms` and `corruptions` (what happens to its images), `partition`
and `class_pools` (who gets which example), `domains` (evolving domains, and the
clients that hold them), `guidance` (clients with classes and colours of their
own), `schedules` and `streams` (how a client's data drift after deployment),
`periods` (data whose classes are drawn anew from period to period). Data of
your own enter by `own_datasets` (files), `from_arrays` and `from_client_data`
(TFF's). Nothing here knows more of a model than its name, and nothing imports
TensorFlow before a data set needs it.
"""

from tff_shift.data.your_own import from_arrays as from_arrays
from tff_shift.data.your_own import from_client_data as from_client_data
