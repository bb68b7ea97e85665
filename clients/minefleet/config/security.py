"""Configuration of access to a fleet's services."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SecurityConfig:
    """Access to the services. With neither certificates nor a token, they listen on this machine only."""

    certificates: str = ""
    """Folder that `minefleet certs init` made, of which a role needs its own subfolder: connections are encrypted, both
    ends show who they are, and a role may call what its part in the fleet is. Relative to CONFIG."""
    token_file: str = ""
    """File with a secret that every caller must show; its bearer may call everything. Relative to CONFIG."""
    insecure: bool = False
    """Listen on other addresses than this machine's own, though anybody may call."""
