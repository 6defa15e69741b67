"""LAMA, T-REx: 41 relations between subjects and objects of Wikidata.

F. Petroni et al., "Language Models as Knowledge Bases?" (EMNLP 2019); see
`lama_archive`. Examples are tokens of the given pre-trained model.
"""

# Decisions: BUILD_NOTES, "LAMA with a Llama".

import numpy as np

from tff_shift.data import dataset
from tff_shift.data.readers import lama_archive

DATASET = dataset.DatasetInfo(
  shape=(lama_archive.LENGTH,),
  dtype=np.int32,
  num_classes=lama_archive.NUM_RELATIONS,
  models={"online_adaptation": "llama"},
  tokenize=lama_archive.load,
)
