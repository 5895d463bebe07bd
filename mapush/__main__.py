"""``python -m mapush`` is the command ``mapush``."""

import sys

from mapush.cli import main

sys.exit(main())
