"""All cases under their names."""

from tests.differential.kernel_cases import attention, cache_ops, dense, engine, graphs, models, sampling
from tests.differential.kernel_cases.case import Case

CASES: dict[str, Case] = {
    **cache_ops.CASES,
    **attention.CASES,
    **dense.CASES,
    **sampling.CASES,
    **engine.CASES,
    **models.CASES,
    **graphs.CASES,
}
