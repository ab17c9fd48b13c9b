"""Entry of ``python -m farm_agents``."""

from farm_agents.main import main

raise SystemExit(main())
