"""Benchmarks of speed and memory, as ratios measured side by side.

Run them as modules: `python -m benchmarks.<name>`.
"""
