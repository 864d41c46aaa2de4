"""What every command line of the program shares: parsers that raise, sub-commands that teach, kinds of values."""

import argparse
from collections.abc import Callable, Sequence
from fractions import Fraction

from adadp.commands import TEACH, choose


class Parser(argparse.ArgumentParser):
    """Mistakes are raised, so that they all take the same way out."""

    def __init__(self, **options):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str):
        raise ValueError(f"{message}; see: {self.prog} --help")


class Commands(dict):
    """Sub-commands by name; a name that is not there is refused with the one that was probably meant."""

    def __contains__(self, name) -> bool:
        return bool(choose(name, self.keys(), "command"))


def add(commands, name: str, run: Callable, summary: str, *examples: str, teach: str = "") -> argparse.ArgumentParser:
    """A sub-command; its help begins with what it does and what to know, and ends with examples."""
    teach = teach or TEACH.get(name, "")
    epilog = "examples:\n" + "\n".join(f"  {example}" for example in examples)
    description = f"{summary[0].upper()}{summary[1:]}.\n\n{teach}".strip()
    p = commands.add_parser(name, help=summary, description=description, epilog=epilog)
    debug_option(p)
    p.set_defaults(run=run, parser=p)
    return p


def debug_option(parser: argparse.ArgumentParser) -> None:
    """``--debug``, before the sub-command or after it."""
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
    )


def choice(p: argparse.ArgumentParser, flag: str, names: Sequence[str], default: str | None, text: str) -> None:
    """An option with a list of values; a misspelt one is refused with a suggestion."""
    what = flag.lstrip("-")

    def kind(value: str) -> str:
        try:
            return choose(value, names, what)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    shown = f"{text} (default: {default})" if default else text
    p.add_argument(flag, type=kind, default=default, metavar="|".join(names), help=shown)


def count(text: str) -> int:
    """A whole number of at least 1; argparse puts the option's name before the message."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def rate(text: str) -> float:
    """A number or a fraction."""
    try:
        return float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number or a fraction such as 1/300") from error
