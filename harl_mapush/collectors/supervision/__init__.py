"""Pace, health and stalls of the processes of an asynchronous run."""
