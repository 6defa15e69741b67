"""Reddit: titles of posts of 2014 to 2018, from five subreddits (the classes).

J. Baumgartner et al., "The Pushshift Reddit Dataset" (ICWSM 2020), in files
that you provide. Classes and domains are those of "Federated Learning under
Evolving Distribution Shifts", Appendix E.2: half-years, 5,000 titles each.

Choices:
  * Public access to the archive that the paper names has been restricted since
    2023, and no set of tensorflow-datasets has titles by month: a format of our
    own, with the field names of the archive. Results are on synthetic titles
    only.
  * A domain has 1,000 titles of each class and half-year, so that an untrained
    classifier has 20 %.
  * Of titles with the same words the earliest is used, with its class and
    half-year: a title is not in training with one class and in test with
    another. News and worldnews have many in common.
  * Learning rates, batches and weight decay are as in the presets of the other
    data sets for Adam: 1e-3, 5e-3 and 1e-2, 32, 5e-4.
"""

import numpy as np

from tff_shift.data import dataset
from tff_shift.data.readers import text_archives
from tff_shift.data.texts import text

_NUM_WORDS = 20_000

DATASET = dataset.DatasetInfo(
  shape=(text_archives.TITLE_LENGTH,),
  dtype=np.int32,
  num_classes=len(text_archives.SUBREDDITS),
  models={"evolving": "bi_lstm"},
  load=text_archives.reddit,
  evolution=dataset.Evolution(
    num_domains=len(text_archives.HALF_YEARS),
    time_range=(0, len(text_archives.HALF_YEARS) - 1),
    range_format="{} to {}",
    time_names=text_archives.HALF_YEARS,
  ),
  vocabulary_size=_NUM_WORDS + len(text.RESERVED),
)
