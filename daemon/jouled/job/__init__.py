"""One tuning run: measure, search, decide, apply, and put the board back on every other way out."""
