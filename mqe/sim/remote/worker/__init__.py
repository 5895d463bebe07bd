"""What runs in a simulator's own process, under its own interpreter: standard library, numpy,
Python 3.8 or newer.
"""
