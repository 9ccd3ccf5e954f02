"""`python -m jouled.cli`."""

import sys

from jouled.cli import main

sys.exit(main())
