"""Reddit: titles of posts of 2014 to 2018, from five subreddits (the classes).

J. Baumgartner et al., "The Pushshift Reddit Dataset" (ICWSM 2020), in files
that you provide. Classes and domains are those of "Federated Learning under
Evolving Distribution Shifts", Appendix E.2: half-years, 5,000 titles each.
"""

# Decisions: BUILD_NOTES, "Reddit titles".

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
