"""What holds for every test."""

import os

# One thread: results do not depend on the machine, and test processes side by side do not fight for cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
