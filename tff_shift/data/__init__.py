"""Data of the scenarios, as plain NumPy arrays.

Read in this order:

- `examples` and `client_dataset`: arrays of examples, validated on entry.
- `dataset` and `datasets/`: the entry of a data set (`DatasetInfo`), its
  examples (`Dataset`), and one file per data set.
- `readers/`: published archives on the disk.
- `images/` and `texts/`: image transforms and corruptions; vocabularies and
  tokenizers.
- `partition`: partitions of examples over clients.
- `shifts/`: the client data of each scenario. `evolving` has domains that
  evolve over time, `online_adaptation` streams that drift after deployment
  (`schedules`, `class_pools`), `guidance` clients with their own classes and
  colours, `dynamic_personalization` periods whose label distribution changes.
- `your_own/`: your files (`own_datasets`), arrays (`from_arrays`) and TFF
  client data (`from_client_data`).

Models appear here by name only. Data sets that need TensorFlow import it when
they are used.
"""

from tff_shift.data.your_own import from_arrays as from_arrays
from tff_shift.data.your_own import from_client_data as from_client_data
