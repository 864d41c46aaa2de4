"""The program ``adadp``: one sub-command a job. What a sub-command needs is imported when it runs."""

import argparse
import difflib
import errno
import os
import sys
from collections.abc import Sequence

from adadp import __version__
from adadp import commands as actions
from adadp.cli_federated import add_federated
from adadp.commands import ACCOUNTANTS, FAULTS, NEIGHBORS, PROFILES
from adadp.endings import Terminated, termination_raised, writable_streams
from adadp.parsing import Commands, Parser, add, choice, count, debug_option, rate

USER, BUG, INTERRUPTED, NO_READER, TERMINATED = 2, 1, 130, 141, 143  # exit codes besides 0
DEVICES = ("auto", "cpu", "cuda")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; what the user, the data or the disk did wrong is one line on standard error.

    Returns:
        0; 2 after such a mistake; 1 after a fault of the program itself; 130 after Ctrl-C, 143 after SIGTERM: both
        end what the program started. ``--debug`` shows the traceback instead.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    writable_streams()
    parser = _parser()
    if not argv:
        parser.print_help()
        return USER
    debug = "--debug" in argv
    try:
        arguments, extra = parser.parse_known_args(argv)
        if hasattr(arguments, "experiment") and not any(name.startswith("-") for name in extra):
            arguments.experiment, extra = [*arguments.experiment, *extra], []  # names that come after an option
        if arguments.command is None:
            raise ValueError("a command is missing; see: adadp --help")
        if extra:
            raise ValueError(_unknown_options(extra, arguments.parser))
        with termination_raised():
            arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        terminated = isinstance(error, Terminated)
        print(f"adadp: {'terminated' if terminated else 'interrupted'}; what was finished is kept", file=sys.stderr)
        return TERMINATED if terminated else INTERRUPTED
    except BrokenPipeError:  # adadp ... | head
        _drop_output()
        return NO_READER
    except Exception as error:
        if debug:
            raise
        known = isinstance(error, ValueError | RuntimeError | OSError | ImportError)
        print(f"adadp: error: {_one_line(error, known)}", file=sys.stderr)
        _drop_output()
        return USER if known else BUG
    return 0


def _parser() -> argparse.ArgumentParser:
    """The whole command line."""
    description = (
        "Learning rates found by step doubling: the executed book, the experiments, and the privacy they cost."
    )
    parser = Parser(
        prog="adadp", description=description, epilog="Help and examples of a command: adadp COMMAND --help"
    )
    parser.add_argument("--version", action="version", version=f"adadp {__version__}")
    debug_option(parser)
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", parser_class=Parser)
    for add_command in (_add_book, _add_run, _add_results, _add_epsilon, _add_calibrate, _add_audit, add_federated):
        add_command(commands)
    commands.choices = Commands(commands.choices)
    return parser


def _add_book(commands) -> argparse.ArgumentParser:
    p = add(commands, "book", actions.book, "execute the notebooks and build the book from them",
             "adadp book                    the whole book in minutes, on bundled data",
             "adadp book --profile paper    longer, with one full-size run a chapter (hours; use a GPU)",
             "adadp book --strict           a warning is an error, as in tests")  # fmt: skip
    choice(p, "--profile", ("quick", "paper"), "quick", "quick: seconds a chapter; paper: full size")
    p.add_argument("--seed", type=int, default=0, help="seed of every notebook (default: 0)")
    choice(p, "--device", DEVICES, "auto", "where to train")
    p.add_argument("--strict", action="store_true", help="a warning is an error")
    p.add_argument("--no-cache", action="store_true", help="execute every notebook anew")
    p.add_argument("--jobs", type=count, metavar="N", help="notebooks executed side by side (default: up to 2)")
    p.add_argument("--output", metavar="FOLDER", help="folder of the finished book (default: _build/html)")
    p.add_argument("--repository", metavar="URL", help="public repository: adds launch and source buttons")
    p.add_argument("--commit", metavar="SHA", help="what the buttons open (default: the one checked out)")
    p.add_argument("--pages-branch", default="gh-pages", metavar="NAME", help="where pages go (default: gh-pages)")
    p.add_argument("--base-url", metavar="URL", help="address where the pages will be published")
    return p


def _add_run(commands) -> argparse.ArgumentParser:
    p = add(commands, "run", actions.run, "compute the runs of experiments that are not stored yet",
             "adadp run dp-adam-mnist --dry-run           what is lacking, and the hours it takes here",
             "adadp run dp-adam-mnist --tier 1 --jobs 2   two processes; stop and start again at any time",
             "adadp run all --profile quick               every experiment in seconds, on bundled data")  # fmt: skip
    p.add_argument("experiment", nargs="+", metavar="EXPERIMENT", help="names of experiments, or: all")
    choice(
        p,
        "--profile",
        PROFILES,
        "paper",
        "paper: full size; full-data, laptop: smaller federated runs; pilot: 5 epochs; quick: seconds",
    )
    p.add_argument("--jobs", type=count, default=1, metavar="N", help="runs side by side, one thread each (default: 1)")
    choice(p, "--backend", ("loky", "dask", "ray"), "loky", "joblib's backend for two jobs and more")
    choice(p, "--device", DEVICES, "auto", "where to train")
    p.add_argument("--dry-run", action="store_true", help="only show what is lacking and how long it takes")
    p.add_argument("--tier", type=count, metavar="K", help="only the tiers up to this one")
    p.add_argument("--limit", type=count, metavar="N", help="stop after so many runs")
    _folder(p)
    return p


def _folder(p: argparse.ArgumentParser) -> None:
    """``--folder`` of everything that reads or writes results."""
    p.add_argument("--folder", help="where results are stored (default: the package)")


def _add_results(commands) -> argparse.ArgumentParser:
    p = add(commands, "results", actions.results, "look at the stored results, or compute some again and compare",
             "adadp results status                  stored and planned runs by experiment",
             "adadp results table dp-adam-mnist     one row a curve",
             "adadp results claims                  the paper's claims, judged from what is stored",
             "adadp results verify --sample 3       three stored runs, computed again")  # fmt: skip
    p.add_argument("action", metavar="|".join(actions.ACTIONS), help="what to do")
    p.add_argument(
        "experiment", nargs="*", default=[], metavar="NAME", help="only these experiments or claims (default: all)"
    )
    choice(p, "--profile", PROFILES, "paper", "which results")
    p.add_argument("--sample", type=count, default=3, metavar="K", help="verify: runs to compute again (default: 3)")
    p.add_argument("--seed", type=int, default=0, help="verify: which runs are drawn (default: 0)")
    choice(p, "--device", DEVICES, "auto", "verify: where to train")
    _folder(p)
    return p


def _add_epsilon(commands) -> argparse.ArgumentParser:
    p = add(commands, "epsilon", actions.epsilon, "the epsilon of a training plan with Poisson sampling",
             "adadp epsilon --noise-multiplier 2 --sample-rate 200/60000 --epochs 100",
             "adadp epsilon --noise-multiplier 2 --sample-rate 0.01 --steps 5000 --accountant pld")  # fmt: skip
    p.add_argument("--noise-multiplier", type=float, required=True, metavar="SIGMA", help="noise / clipping norm")
    _add_plan(p)
    choice(p, "--accountant", ACCOUNTANTS, None, "show this one alone, as a bare number (default: all)")
    choice(p, "--neighbors", NEIGHBORS, "add_remove", "which data sets count as neighbours (replace_one: pld only)")
    return p


def _add_calibrate(commands) -> argparse.ArgumentParser:
    p = add(commands, "calibrate", actions.calibrate, "the noise multiplier that a target epsilon needs",
             "adadp calibrate --epsilon 1 --sample-rate 200/60000 --epochs 100",
             "adadp calibrate --epsilon 8 --delta 1e-6 --sample-rate 0.01 --steps 5000")  # fmt: skip
    p.add_argument("--target-epsilon", "--epsilon", type=float, required=True, metavar="EPSILON", help="never exceeded")
    _add_plan(p)
    choice(p, "--accountant", ACCOUNTANTS, "pld", "whose epsilon")
    choice(p, "--neighbors", NEIGHBORS, "add_remove", "which data sets count as neighbours (replace_one: pld only)")
    return p


def _add_audit(commands) -> argparse.ArgumentParser:
    p = add(commands, "audit", actions.audit, "measure how private the gradient is; fail if less than declared",
             "adadp audit                                 1000 observations a side, under a minute",
             "adadp audit --profile paper --seed 1        5000 observations: closer bounds",
             "adadp audit --noise-multiplier 2 --no-one-run",
             "adadp audit --plant no-noise-on-g2          a fault, to see the audit fail (exit code 2)")  # fmt: skip
    choice(p, "--profile", ("quick", "paper"), "quick", "quick: under a minute; paper: five times the observations")
    p.add_argument("--noise-multiplier", type=float, default=1.0, metavar="SIGMA", help="declared noise (default: 1)")
    p.add_argument("--delta", type=float, default=1e-5, help="at which epsilon is taken (default: 1e-5)")
    p.add_argument("--confidence", type=float, default=0.95, help="with which bounds hold (default: 0.95)")
    p.add_argument("--seed", type=int, default=0, help="(default: 0)")
    p.add_argument("--no-one-run", action="store_true", help="leave out the audit with a thousand canaries in one run")
    choice(p, "--plant", FAULTS, None, "audit a gradient with this fault instead of the right one")
    return p


def _add_plan(p: argparse.ArgumentParser) -> None:
    """How often, how much of the data, and delta."""
    p.add_argument("--sample-rate", type=rate, required=True, metavar="Q", help="batch size / data size, such as 1/300")
    length = p.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, metavar="N", help="gradients (an ADADP iteration takes two)")
    length.add_argument("--epochs", type=int, metavar="N", help="instead of steps: N times round(1/Q) gradients")
    p.add_argument("--delta", type=float, default=1e-5, help="(default: 1e-5)")


def _drop_output() -> None:
    """Forget output that can't be written, or the interpreter would complain about it once more when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(error: Exception, known: bool) -> str:
    """What went wrong and what to do, on one line."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        where = f" for {error.filename}" if error.filename else ""
        return f"no space left on the disk{where}; free some and run the same command again"
    if isinstance(error, ModuleNotFoundError):
        return f"{error}; install what this command needs: pip install 'adadp[book]'"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror.lower()}"
    text = " ".join(str(error).split()) or type(error).__name__
    return text if known else f"{type(error).__name__}: {text} (a fault of adadp: run it again with --debug)"


def _unknown_options(extra: list[str], parser: Parser) -> str:
    """What argparse had no use for, with what was probably meant."""
    options = [option for action in parser._actions for option in action.option_strings]
    near = difflib.get_close_matches(extra[0].split("=")[0], options, 1, 0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown argument {extra[0]!r}{hint}; see: {parser.prog} --help"
