"""What holds for every test."""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# One thread: results do not depend on the machine, and test processes side by side do not fight for cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What the user of this machine keeps decides no test; the folder is not there.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent / "no-user-folder")

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
