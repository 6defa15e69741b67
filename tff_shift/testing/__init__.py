"""The contract of all algorithms, as tests.

  python -m tff_shift.testing my_algorithm.py

runs it for an algorithm's file at any path. The modules here need pytest;
nothing else in the package does.
"""
