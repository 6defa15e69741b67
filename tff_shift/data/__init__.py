"""Data of the scenarios, as plain NumPy arrays.

Read in this order: `sources` (a named data set as it is; `image_archives` reads
folders of images, `corrupted_sources` the published corrupted images),
`transforms`, `color_transforms` and `corruptions` (what happens to its images),
`partition` and `class_pools` (who gets which example), `domains` (evolving
domains, and the clients that hold them), `guidance` (clients with classes and
colours of their own), `schedules` and `streams` (how a client's data drift
after deployment), `periods` (data whose classes are drawn anew from period to
period). Nothing here knows a model, and nothing imports TensorFlow before a
data set needs it.
"""
