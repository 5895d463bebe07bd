"""Evaluation of trained policies: the calculator and the gait examination."""
