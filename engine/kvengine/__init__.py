"""The paged engine: block pool, block tables, scheduler, model runner, telemetry."""

import os

# Read when torch loads its OpenMP. Threads that spin while they wait make a step some 6 times slower as soon as
# another process wants a core (60 products of 12x576 by 576x1536 on two cores: 396 ms spinning, 61 ms sleeping).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Between two products a thread may look out for the next one this many times before it sleeps, some 10 us: 120 products
# with one row in bfloat16 take 7 ms instead of 12. From 3,000 on another process on the same cores slows it as above.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
