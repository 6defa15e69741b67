"""Data of the scenarios, as plain NumPy arrays.

Read in this order:

- `examples`, `table` and `client_dataset`: arrays of examples, and tables of
  them with a schema, validated on entry.
- `dataset` and `datasets/`: the entry of a data set (`DatasetInfo`), and one
  file per data set.
- `sources/`: one file per format of a user's data; `readers/`: published
  archives on the disk.
- `images/` and `texts/`: image transforms and corruptions; vocabularies and
  tokenizers.
- `partition`: partitions of examples over clients.
- `shifts/`: the client data of each scenario, from a data set's name, or from a
  table (`deal`). `evolving` has domains that evolve over time,
  `online_adaptation` streams that drift after deployment (`schedules`,
  `class_pools`), `guidance` clients with their own classes and colours,
  `dynamic_personalization` periods whose label distribution changes.
- `from_python`: arrays, data frames and TFF client data as client data.

Models appear here by name only. Data sets that need TensorFlow import it when
they are used.
"""
