"""Asynchronous collection: processes collect transitions while the learner learns."""
