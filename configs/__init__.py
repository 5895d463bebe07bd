"""Run files that ship with mapush; ``--preset NAME`` reads them."""
