"""How far a client's data have moved, measured without labels.

Read in this order: `bbse` (which classes unlabelled data have), `dynamics` (the
signal of Fed-ADE and the learning rate that follows it), `measures` (other ways
to compare two time steps) and `change_point` (the one of them that remembers).
These are pure TensorFlow functions of tensors, which become part of a client's
computation. `distances` (how far apart the data of two periods are, and from
where on that is drift) and `representations` (what describes the data of a
period to a hypernetwork) are plain NumPy.
"""
