"""Entry point for ``python -m mapush``, equal to the command ``mapush``."""

import sys

from mapush.cli import main

sys.exit(main())
