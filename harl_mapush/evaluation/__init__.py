"""Evaluation of trained policies: calculator, suites and watchers."""
