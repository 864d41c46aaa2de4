"""``adadp``: one program, one sub-command a job. What a sub-command needs is imported when it runs."""

import argparse
import sys
from collections.abc import Sequence

from adadp import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; a mistake of the user, or of the disk, is one line and exit code 2.

    Returns:
        0, or 2 after an error (argparse's own code, too), or 130 after Ctrl-C.
    """
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except KeyboardInterrupt:
        print("adadp: interrupted", file=sys.stderr)
        return 130
    except (ValueError, RuntimeError, OSError) as error:
        if arguments.debug:
            raise
        print(f"adadp: error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(prog="adadp", description=__doc__)
    parser.add_argument("--version", action="version", version=f"adadp {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_book,):
        add(commands, common)
    return parser


def _add_book(commands, common: argparse.ArgumentParser) -> None:
    """``adadp book``: execute the notebooks and build the pages."""
    p = commands.add_parser("book", parents=[common], help="execute the notebooks and build the book")
    p.add_argument("--profile", default="quick", choices=("quick", "paper"), help="quick: seconds; paper: full size")
    p.add_argument("--seed", type=int, default=0, help="seed of every notebook (default: 0)")
    p.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="where to train (default: auto)")
    p.add_argument("--strict", action="store_true", help="a warning is an error")
    p.add_argument("--no-cache", action="store_true", help="execute every notebook anew")
    p.add_argument("--jobs", type=int, metavar="N", help="notebooks executed side by side (default: up to 2)")
    p.add_argument("--output", metavar="FOLDER", help="folder of the finished book (default: _build/html)")
    p.add_argument("--repository", metavar="URL", help="public repository: adds launch and source buttons")
    p.add_argument("--branch", default="main", help="branch or commit that the buttons open (default: main)")
    p.add_argument("--base-url", metavar="URL", help="address where the pages will be published")
    p.set_defaults(run=_book)


def _book(a: argparse.Namespace) -> None:
    """Build, then say where the book is."""
    from adadp.publishing.build import build_book

    index = build_book(
        profile=a.profile, seed=a.seed, device=a.device, strict=a.strict, use_cache=not a.no_cache, workers=a.jobs,
        output=a.output, repository=a.repository, branch=a.branch, base_url=a.base_url,
    )  # fmt: skip
    print(f"The book: {index}\nTo read it over http: python -m http.server --directory {index.parent} 8000")
