"""Mutated inputs for every reader of nescio, for fuzz.py and for tests/test_fuzz.py."""
