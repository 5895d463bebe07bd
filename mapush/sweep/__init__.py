"""``mapush sweep``: many runs over a space of settings, on Ray Tune with Optuna's search and
ASHA's early stopping.
"""
