"""LAMA, T-REx: 41 relations between subjects and objects of Wikidata.

F. Petroni et al., "Language Models as Knowledge Bases?" (EMNLP 2019); see
`lama_archive`. Examples are tokens of the given pre-trained model.

Choices:
  * The Fed-ADE paper has the numbers of clients, rounds and epochs, AdamW,
    batches of 4, the model, the place of the adapters, and the learning rates
    (6.1, Tables 1 and 7, Appendix G). Neither archive nor weights were
    available; results are on generated relations (results/text.md).
  * With objects as classes there would be thousands, too many for a confusion
    matrix from 4,100 examples, and 95.8 % is far above the knowledge that
    language models have of them.
  * The paper has disjoint relations over clients, and a prior that starts
    uniform and ends at a draw from Dirichlet(0.1) over the classes. A client
    has 8 or 9 relations, assigned at random once (with `--pretraining_seed`).
    Q_0 is uniform over these, Q_T a Dirichlet draw over these, and labelled
    examples are of these. The pre-trained model, its confusion matrix, q and
    the estimates have all 41 classes (`--client_classes=all`).
  * The 100 facts of a relation are one draw for all seeds.
  * Adapters and head are pre-trained as for the other data sets, on the facts
    of the pre-training part, all 41 relations (`--max_pretraining_examples`,
    `--pretraining_epochs`).
  * eta_min is 1e-3, as in 6.1 and Table 7 (1e-4 in H.1; `--eta_min`). Weight
    decay of AdamW is 0.01, its usual value; T is 100, as everywhere in 6.1. The
    head has one epoch, as the other update (`--head_epochs`).
  * The tokenizer belongs to the model, so a text data set is loaded with
    `--model_dir`. Tokens are not cached: reading and tokenising 4,000 facts
    took 0.3 s, with a word tokenizer.
"""

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
