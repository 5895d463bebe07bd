"""Robots: one module each, every constant named, with unit and source."""
