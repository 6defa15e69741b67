"""What a run learned, taken away: models in files, and their use.

`export` writes them (with TFF), `predictor` reads and asks them (with
TensorFlow alone).
"""
