"""The errors we raise on purpose: what went wrong, and what to do about it."""


class KVError(Exception):
    """Base of every error raised on purpose.

    Args:
        message: The fact, with its numbers, in one line.
        hint: A command or setting that would help; empty when there is none.
    """

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(KVError):
    """A file or flag says something impossible; `where` names the file and key."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.where = where


class DeviceError(KVError):
    """No GPU, no driver, or an optional part that is needed here is not installed."""

    exit_code = 3


class CapacityError(KVError):
    """A request that could never fit, even alone in an empty pool."""

    exit_code = 1


class RejectedError(CapacityError):
    """A request that is not taken in.

    Args:
        status: What a server would answer: 400 if no server could take it, 503 if this engine never can, 429 if it can
            later.
    """

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class TransferError(KVError):
    """A transfer that is unknown, or has been completed already."""

    exit_code = 2


class TelemetryError(KVError):
    """A stream or recording that cannot be read."""

    exit_code = 2
