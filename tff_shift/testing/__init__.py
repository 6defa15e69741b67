"""The contract that every algorithm keeps, as tests.

  python -m tff_shift.testing my_algorithm.py

runs it over an algorithm's file, wherever it lives. The modules here need
pytest; nothing else in the package does.
"""
