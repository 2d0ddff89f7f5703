"""Reads a profile as the command that uses it would."""

from collections.abc import Callable

from kvengine.errors import KVError
from kvplan.profiles import Profile


def find_problem(profile: Profile) -> str | None:
    """Return what is wrong with a profile in one line, None when it is valid."""
    try:
        _READERS[profile.kind](profile)
    except KVError as error:
        text = str(error)
        return text if str(profile.path) in text else f"{profile.path.parent}/{text}"
    return None


def _read_calibration(profile: Profile) -> None:
    from kvplan.calibration.store import read_calibration

    read_calibration(profile.path)


def _read_gpu(profile: Profile) -> None:
    from kvplan.gpu_spec import load_gpu_profile

    load_gpu_profile(profile)


def _read_model(profile: Profile) -> None:
    from kvplan.model_spec import load_model_profile

    load_model_profile(profile)


def _read_run(profile: Profile) -> None:
    from kvplan.load_profiles import load_run

    load_run(str(profile.path))


def _read_sweep(profile: Profile) -> None:
    from kvplan.load_profiles import load_sweep

    load_sweep(str(profile.path))


def _read_workload(profile: Profile) -> None:
    from kvplan.load_profiles import load_workload

    load_workload(profile.path)


_READERS: dict[str, Callable[[Profile], None]] = {
    "calibrations": _read_calibration,
    "gpus": _read_gpu,
    "models": _read_model,
    "runs": _read_run,
    "sweeps": _read_sweep,
    "workloads": _read_workload,
}
