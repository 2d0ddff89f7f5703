"""Small answers that a configuration gives by a flag, or its class by default."""

from dataclasses import dataclass
from enum import Enum, auto

from kvplan.config_reader import ConfigReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Whether something is there: what its key says, else the default."""

    default: bool = False
    key: str = ""

    def read(self, reader: ConfigReader) -> bool:
        """Return what this configuration says."""
        return reader.flag(self.key, default=self.default) if self.key else self.default


NO, YES = Flag(), Flag(default=True)


class QKNorm(Enum):
    """Norms on queries and keys."""

    NONE = auto()
    PER_HEAD = auto()
    """One weight per head dimension, shared by the heads."""
    FULL = auto()
    """One weight per channel."""
