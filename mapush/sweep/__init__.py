"""``mapush sweep``: many runs over a space of settings, with Ray Tune, Optuna and ASHA."""
