"""Evaluation of trained policies: calculator and suites."""
