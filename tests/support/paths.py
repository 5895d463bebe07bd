"""Checkout folders for tests."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
DATA = TESTS / "data"
EXTENSIONS = ROOT / "mapush" / "extensions"
