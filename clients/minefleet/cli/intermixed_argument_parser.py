"""A parser for commands and for their sub-commands."""

import argparse
from collections.abc import Callable
from typing import Any


class CommandParser(argparse.ArgumentParser):
    """A parser of commands. Words and options of a command may come in any order, which sub-parsers else refuse."""

    make_epilog: Callable[[], str] | None = None
    """Makes what stands below the help, when help is asked for."""
    _is_mixing = False

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses a command's options first, then its words, each by this method."""
        if self._is_mixing or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True
        return self.parse_known_intermixed_args(args, namespace)

    def format_help(self) -> str:
        """The text of `--help`."""
        if self.make_epilog is not None:
            self.epilog = self.make_epilog()
        return super().format_help()
