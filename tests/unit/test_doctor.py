"""What the examination says of names that clash."""

from pathlib import Path

import pytest

from kvplan.doctor import Status, examine


def findings() -> dict[str, tuple[Status, str]]:
    return {finding.check: (finding.status, finding.detail) for finding in examine()}


def test_a_command_of_our_name_that_comes_first_on_the_path_is_a_clash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = tmp_path / "kvtop"
    stranger.write_text("#!/bin/sh\n")
    stranger.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = findings()

    assert found["command kvtop"][0] is Status.CLASH
    assert f"{stranger} comes first on the PATH" in found["command kvtop"][1]
    assert found["command kvplan"][0] is Status.ABSENT


def test_a_file_that_cannot_be_run_is_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kvtop").write_text("notes")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert findings()["command kvtop"][0] is Status.ABSENT


def test_a_package_of_our_commands_name_is_a_clash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "kvplan-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvplan\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = findings()

    assert found["package kvplan"][0] is Status.CLASH
    assert "an unrelated package kvplan 9.9 is installed" in found["package kvplan"][1]
    assert "package kvtop" not in found


def test_every_part_that_can_be_missing_is_looked_at() -> None:
    assert {"python", "pagedkv", "driver", "torch", "triton", "gguf", "tokenizers", "demo model"} <= findings().keys()
