"""Seconds as protobuf durations, and back."""

from google.protobuf.duration_pb2 import Duration


def duration(seconds: float) -> Duration:
    """A duration of so many seconds, to the nanosecond."""
    made = Duration()
    made.FromNanoseconds(round(seconds * 1e9))
    return made


def in_seconds(sent: Duration) -> float:
    """The seconds of a duration; 0 for one that was not sent."""
    return sent.ToNanoseconds() / 1e9
