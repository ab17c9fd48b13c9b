"""``python -m farm_tracker``."""

import sys

from farm_tracker.main import main

sys.exit(main())
