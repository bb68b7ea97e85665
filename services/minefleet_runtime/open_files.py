"""Raises the limit of open files: each connection takes one."""

import resource


def allow_open_files() -> None:
    """Raises this process's soft limit to the hard one: the usual 1,024 are fewer than a server's connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_open_files() -> int:
    """The number of files that this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
