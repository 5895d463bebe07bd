"""Suites with robots from Unitree's files."""

from pathlib import Path

from harl_mapush.config import register_suite

register_suite(Path(__file__).with_name("sim2sim.yaml"))
