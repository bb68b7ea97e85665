"""Replaces what UTF-8 cannot encode, so that texts can be sent and printed."""


def readable(text: str) -> str:
    """A text with question marks for what UTF-8 cannot say: names of files, and errors that hold them."""
    return text.encode(errors="replace").decode()
