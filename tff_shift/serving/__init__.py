"""Trained models as files, and their use.

`export` writes them (with TFF), `predictor` loads them and predicts (with
TensorFlow only). `adapter` runs an algorithm of streams on batches as they
come; `adapter_server` and `adapter_client` do so with each client in its own
process.
"""
