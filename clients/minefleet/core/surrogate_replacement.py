"""Texts that people and the wire can take."""


def readable(text: str) -> str:
    """A text with question marks for what UTF-8 cannot say: names of files, and errors that hold them."""
    return text.encode(errors="replace").decode()
