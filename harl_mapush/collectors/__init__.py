"""Asynchronous collection: processes that collect transitions while the learner learns
(``runner.collectors``).
"""
