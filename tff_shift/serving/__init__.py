"""Trained models as files, and their use.

`export` writes them (with TFF), `predictor` loads them and predicts (with
TensorFlow only).
"""
