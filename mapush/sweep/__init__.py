"""``mapush sweep``: many runs over a space of settings, with Optuna's search and early stopping."""
