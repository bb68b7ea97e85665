"""All errors, as one tree.

FleetError
├── ConfigError            the configuration cannot work; exit code 2
│   └── EnvFailedError     the environment fails before it has ever worked
├── GaveUpError            going on is pointless, and so is a restart; exit code 3
├── RolledBackError        the run goes back to an older checkpoint: the learner starts again; exit code 4
├── ContractError          wire version, schema, architecture or a key differs between two roles
│   └── RunMismatchError   a store holds another run
├── FencedError            a newer epoch has taken over, or another version was published first
├── RejectedError          the peer found the request malformed
├── NotFoundError          the named lease, version or tensor is gone
├── ConflictError          the name is taken by other bytes
├── CorruptError           stored bytes failed their checksum
├── OverloadedError        no room; try again after `retry_after_s`
├── UnavailableError       the peer does not answer or is draining
├── DeadlineError          the deadline passed
├── AuthError              not allowed
│   └── StrangerError      the caller does not show who it is
└── InternalError          a bug in the peer
"""

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_GAVE_UP = 3
EXIT_AGAIN = 4
EXIT_SIGNAL = 130


class FleetError(Exception):
    """Anything that minefleet raises on purpose."""

    exit_code = EXIT_FAILED
    """Of a role that it ends."""


class ConfigError(FleetError):
    """The configuration cannot work. Says what, where, and the nearest valid value."""

    exit_code = EXIT_CONFIG


class EnvFailedError(ConfigError):
    """The environment fails before it has ever worked. Holds its own traceback."""


class GaveUpError(FleetError):
    """Going on is pointless, and so is starting again. Says why and what to look at."""

    exit_code = EXIT_GAVE_UP


class RolledBackError(FleetError):
    """The run goes back to an older checkpoint. This learner ends, and another start goes on from there."""

    exit_code = EXIT_AGAIN


class ContractError(FleetError):
    """Two roles do not fit together."""


class RunMismatchError(ContractError):
    """A store holds another run."""


class FencedError(FleetError):
    """A newer epoch has taken over, or another version was published first."""


class RejectedError(FleetError):
    """The peer found the request malformed."""


class NotFoundError(FleetError):
    """The named lease, version or tensor is gone."""


class ConflictError(FleetError):
    """The name is taken by other bytes."""


class CorruptError(FleetError):
    """Stored bytes failed their checksum."""


class OverloadedError(FleetError):
    """The peer has no room now.

    Attributes:
        retry_after_s: When to try again, in seconds.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(FleetError):
    """The peer does not answer or is draining."""


class DeadlineError(FleetError):
    """The deadline passed before the peer answered."""


class AuthError(FleetError):
    """The peer does not let this caller do this."""


class StrangerError(AuthError):
    """The caller does not show who it is."""


class InternalError(FleetError):
    """A bug in the peer; its log has the details."""
