"""The entry point of ``python -m mapush``, the same as the command ``mapush``."""

import sys

from mapush.cli import main

sys.exit(main())
