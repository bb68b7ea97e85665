"""The signals that ask a process to stop, and how long several of them count as one."""

import signal

ONE_REQUEST_S = 0.5
"""Signals that come together are one request: GNU's `timeout` sends two, one to the process and one to its group."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGINT, SIGTERM and SIGHUP; without SIGHUP where that is ignored, as under `nohup`."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hangup)
