"""Every key of a run profile, a sweep profile and a workload is documented."""

import msgspec
import pytest

from kvplan.run_profile import Grid, RunProfile, SweepProfile
from kvplan.workload import Range, Synthetic, Turn, Workload
from tests.support import ROOT


@pytest.mark.parametrize("schema", [RunProfile, Grid, SweepProfile, Workload, Synthetic, Turn, Range])
def test_every_key_is_documented(schema: type[msgspec.Struct]) -> None:
    text = (ROOT / "docs" / "sweeps.md").read_text()
    keys = [field.encode_name for field in msgspec.structs.fields(schema)]

    assert [key for key in keys if f"`{key}`" not in text] == []
