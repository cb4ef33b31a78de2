"""What flexwarm believes of torchrun's options, held against the parser of the torch that is installed."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flexwarm import commandline

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def _no_defaults_from_the_environment() -> Iterator[None]:
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PET_")}
    yield
    os.environ.update(taken)


def parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def options() -> list[tuple[str, int]]:
    """Every spelling of every option, with the number of words that it takes; not those that print and end."""
    ending = {"--help", "--print-completion"}
    actions = [action for action in parser()._actions if action.option_strings and not ending & {*action.option_strings}]
    return [(text, 0 if action.nargs == 0 else 1) for action in actions for text in action.option_strings]


def test_every_option_of_torchrun_is_known_with_the_words_that_it_takes() -> None:
    for option, words in options():
        # The last word is the launcher's only if the option before it was read as torchrun reads it.
        line = ["torchrun", option, *["1"] * words, "--nproc-per-node=3", "python"]
        assert commandline.read(line).expected_ranks == 3, option


WORDS = [
    *("--nproc-per-node", "--nproc-per-node=2", "--nproc_per_node", "--nproc", "--nnodes=2", "--standalone", "-m", "-r", "-r3"),
    *(
        "-mr",
        "-t=1",
        "--module",
        "--no-python",
        "--role",
        "--role=-x",
        "--",
        "-",
        "3",
        "train.py",
        "-1",
        "-x",
        "--max-restarts",
    ),
    *("--standalone=1", "--rdzv-conf=a=b", "--log-dir", "--help", "a b", "-a b", ""),
]


@given(st.lists(st.sampled_from(WORDS), max_size=7))
@example(["--role", "--", "--nproc-per-node=2", "train.py"])
@example(["--standalone", "--", "train.py", "--nproc-per-node=2"])
@example(["-rdzv", "--nproc-per-node=2", "train.py"])
def test_a_number_of_ranks_is_what_torchrun_itself_reads(words: list[str]) -> None:
    ranks = commandline.read(["torchrun", *words]).expected_ranks
    if ranks is None:
        return  # no claim
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            read = parser().parse_args(words)
        except SystemExit:
            return  # torchrun refuses the line (it looks at the script's options, too), so nothing is started
    # A script that is torchrun itself would multiply; there is none among the words.
    assert read.nproc_per_node == str(ranks)
