"""Data of the scenarios, as plain NumPy arrays.

Read in this order: `examples` (arrays, and their validation on entry),
`datasets` (one file per data set, described by `dataset`; `source` is a loaded
data set; `tfds_archives` and `image_archives` read it from the disk,
`corrupted_sources` reads published corrupted images), `transforms`,
`color_transforms` and `corruptions` (changes of images), `partition` and
`class_pools` (distribution of examples to clients), `evolving` (evolving
domains, and the clients that hold them), `guidance` (clients with their own
classes and colours), `schedules` and `online_adaptation` (drift of a client's
data after deployment), `dynamic_personalization` (data whose label distribution
changes from period to period). Your own data enter by `own_datasets` (files),
`from_arrays` and `from_client_data` (TFF's). Nothing here knows more of a model
than its name, and TensorFlow is imported only by data sets that need it.
"""

from tff_shift.data.your_own import from_arrays as from_arrays
from tff_shift.data.your_own import from_client_data as from_client_data
