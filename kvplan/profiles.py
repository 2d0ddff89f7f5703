"""Where YAML profiles are found: `./profiles`, the user's folder, then those that come with the package."""

import os
from dataclasses import dataclass
from pathlib import Path

from kvengine.errors import ConfigError
from kvplan.loading import did_you_mean

KINDS = ("calibrations", "gpus", "models", "runs", "sweeps", "workloads")
"""One folder each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A profile file and where it was found."""

    kind: str
    name: str
    path: Path
    origin: str
    """`./profiles`, `user` or `built-in`."""


def builtin_folder() -> Path:
    """Return the folder of the profiles that come with the package: in the wheel, or in a checkout."""
    packaged = Path(__file__).parent / "builtin_profiles"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "profiles"


def user_folder() -> Path:
    """Return the user's own profile folder; it need not exist."""
    config_home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(config_home) / "pagedkv" / "profiles"


def profile_folders() -> list[tuple[str, Path]]:
    """Return the folders that are searched, nearest first, each once."""
    folders = [("./profiles", Path("profiles")), ("user", user_folder()), ("built-in", builtin_folder())]
    if folders[0][1].resolve() == folders[2][1].resolve():
        del folders[0]
    return folders


def find_profiles(kind: str) -> dict[str, Profile]:
    """Return the profiles of one kind by name, sorted; the nearest folder wins where a name appears twice."""
    found: dict[str, Profile] = {}
    for origin, folder in profile_folders():
        for path in sorted((folder / kind).glob("*.yaml")):
            found.setdefault(path.stem, Profile(kind=kind, name=path.stem, path=path, origin=origin))
    return dict(sorted(found.items()))


def try_find_profile(kind: str, name: str) -> Profile | None:
    """Return one profile by name, None when there is none."""
    if name and Path(name).name == name:
        for origin, folder in profile_folders():
            path = folder / kind / f"{name}.yaml"
            if path.is_file():
                return Profile(kind=kind, name=name, path=path, origin=origin)
    return None


def find_profile(kind: str, name: str) -> Profile:
    """Return one profile by name.

    Raises:
        ConfigError: There is none; the message names the nearest.
    """
    profile = try_find_profile(kind, name)
    if profile is None:
        suggestion = did_you_mean(name, find_profiles(kind))
        hint = _as_other_command(kind, name) or f"kvplan profiles list {kind}"
        raise ConfigError(f"no {kind.removesuffix('s')} profile named {name!r}{suggestion}", hint=hint)
    return profile


def _as_other_command(kind: str, name: str) -> str | None:
    """The command that takes a profile of that name: a sweep that is asked for as a run, or the other way round."""
    command = {"runs": "sweep", "sweeps": "run"}.get(kind)
    if command is None or try_find_profile(f"{command}s", name) is None:
        return None
    return f"kvplan {command} {name}"
