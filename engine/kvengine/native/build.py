"""Compile the kernels once for this machine's processor, keep the library, and load it.

The library lies in `$XDG_CACHE_HOME/pagedkv`, a folder that only its owner can write to, under a name made from the
source, the compiler and the processor: another of these means another library.
"""

import ctypes
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path

_FOLDER = Path(__file__).parent
_ENTRY = _FOLDER / "kernels.cpp"
SWITCH = "PAGEDKV_NATIVE"
"""Environment variable; 0 turns the kernels off."""
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
    *("-fopenmp", "-shared", "-fPIC"),
)
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_S = 300


class NoKernels(Exception):
    """The kernels cannot be used here; the message says why, in a few words."""


@cache
def load_library() -> ctypes.CDLL | str:
    """Give the compiled kernels, or say why there are none; asked once a process."""
    try:
        return ctypes.CDLL(str(built_library(cache_folder())))
    except (NoKernels, OSError) as error:
        return str(error)


def built_library(folder: Path) -> Path:
    """Give the library's file, compiling it unless that has been done.

    Raises:
        NoKernels: They are switched off, there is no compiler, it fails, or the folder is not private.
    """
    if os.environ.get(SWITCH) == "0":
        raise NoKernels(f"{SWITCH}=0 turns the native kernels off")
    compiler = find_compiler()
    if compiler is None:
        raise NoKernels(f"no C++ compiler ({', '.join(_COMPILERS)}) to build the native kernels with")
    library = folder / f"kernels-{_fingerprint(compiler)}.so"
    _make_private(folder)
    if not library.exists():
        _compile(compiler, library)
    return library


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/pagedkv`, or `~/.cache/pagedkv` where that variable is not set.

    Raises:
        NoKernels: Nor is there a home.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base if base.startswith("/") else os.path.expanduser("~/.cache"))
    if not folder.is_absolute():
        raise NoKernels("no folder to keep the native kernels in: neither XDG_CACHE_HOME nor a home is known")
    return folder / "pagedkv"


def find_compiler() -> str | None:
    """The path of a C++ compiler: `$CXX`, or the first of the usual names."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else _COMPILERS
    return next((path for name in names if (path := shutil.which(name))), None)


def _make_private(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise NoKernels(f"{folder} cannot be made for the native kernels ({error.strerror})") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NoKernels(f"{folder} is not a folder that only its owner writes to, so no library is loaded from it")


def _compile(compiler: str, library: Path) -> None:
    """Write the library in one move, so that a process that starts meanwhile finds all of it or nothing."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        target = Path(folder) / library.name
        try:
            done = subprocess.run(
                [compiler, *_FLAGS, "-o", str(target), str(_ENTRY)],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoKernels(f"{compiler} cannot build the native kernels: {error}") from None
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), f"exit {done.returncode}")
            raise NoKernels(f"{compiler} cannot build the native kernels: {first.strip()}")
        target.replace(library)


def _fingerprint(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    sources = (path.read_text("utf-8") for path in sorted(_FOLDER.glob("*.?pp")))
    parts = (*sources, " ".join(_FLAGS), compiler, version, _processor())
    return sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """What `-march=native` depends on: the processor's features, or its name where the system does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {features}"
