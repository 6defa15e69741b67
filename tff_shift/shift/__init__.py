"""How far a client's data have moved, measured without labels.

Read in this order: `bbse` (which classes unlabelled data have), `dynamics` (the
signal of Fed-ADE and the learning rate that follows it), `measures` (other ways
to compare two time steps) and `change_point` (the one of them that remembers).
Everything here is a pure TensorFlow function of tensors, which becomes part of
a client's computation.
"""
