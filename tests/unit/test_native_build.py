"""How the kernels' library is built, kept and found again, and what is said where there is none."""

import ctypes
import os
from pathlib import Path

import pytest

from kvengine.native.build import NoKernels, built_library, cache_folder, find_compiler

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler here")


@pytest.fixture(autouse=True)
def a_plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAGEDKV_NATIVE", "CXX"):
        monkeypatch.delenv(name, raising=False)


def a_compiler(folder: Path, script: str) -> str:
    path = folder / "fake-c++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


@needs_compiler
def test_the_library_is_built_once_and_has_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = built_library(tmp_path / "cache")
    built_at = library.stat().st_mtime_ns

    assert built_library(tmp_path / "cache") == library
    assert library.stat().st_mtime_ns == built_at
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [library.name]
    assert ctypes.CDLL(str(library)).kv_attend


def test_another_compiler_makes_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for version in ("1.0", "2.0"):
        # Prints its version, and otherwise writes a file where -o says.
        script = f'[ "$1" = --version ] && echo {version} && exit; while [ "$1" != -o ]; do shift; done; echo x > "$2"'
        monkeypatch.setenv("CXX", a_compiler(tmp_path, script))
        names.append(built_library(tmp_path / "cache").name)
    assert names[0] != names[1]


def test_without_a_compiler_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoKernels, match=r"no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\)"):
        built_library(tmp_path / "cache")


def test_a_compiler_that_fails_is_named_with_its_first_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", a_compiler(tmp_path, "echo 'x.cpp:1: error: no such flag' >&2; exit 1"))

    with pytest.raises(NoKernels, match=r"fake-c\+\+ cannot build the native kernels: x.cpp:1: error: no such flag"):
        built_library(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_the_switch_turns_them_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDKV_NATIVE", "0")
    with pytest.raises(NoKernels, match="PAGEDKV_NATIVE=0 turns the native kernels off"):
        built_library(tmp_path / "cache")


def test_nothing_is_loaded_from_a_folder_that_others_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", a_compiler(tmp_path, "exit 0"))
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)

    for folder in (open_folder, link):
        with pytest.raises(NoKernels, match="is not a folder that only its owner writes to"):
            built_library(folder)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", a_compiler(tmp_path, "exit 0"))
    tmp_path.chmod(0o500)
    with pytest.raises(NoKernels, match="cannot be made for the native kernels"):
        built_library(tmp_path / "cache")


def test_the_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/pagedkv")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "pagedkv"


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}[0])  # as for a number that no account has
    with pytest.raises(NoKernels, match="neither XDG_CACHE_HOME nor a home is known"):
        cache_folder()
