"""Every key of a run profile, a sweep profile and a workload is documented."""

import msgspec
import pytest

from kvplan.lengths import Bin, Lengths, Lognormal
from kvplan.load_profiles import SweepProfile
from kvplan.run_profile import RunProfile, ServerTarget, ServiceLevel
from kvplan.workload import Cancellations, PrefixLevel, PriorityShare, Sampling, Synthetic, TraceSource, Turn, Workload
from tests.support import ROOT


@pytest.mark.parametrize(
    "schema",
    [
        *(
            RunProfile,
            ServerTarget,
            ServiceLevel,
            SweepProfile,
            Workload,
            Synthetic,
            PrefixLevel,
            Turn,
            TraceSource,
            PriorityShare,
        ),
        *(Sampling, Cancellations, Lengths, Lognormal, Bin),
    ],
)
def test_every_key_is_documented(schema: type[msgspec.Struct]) -> None:
    text = (ROOT / "docs" / "sweeps.md").read_text()
    keys = [field.encode_name for field in msgspec.structs.fields(schema)]

    assert [key for key in keys if f"`{key}`" not in text] == []
