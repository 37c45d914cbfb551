"""`ringfold configuration` as the shell runs it: the table, a verdict on flags, and its errors.

What the verdicts mean is tested beside the modules that give them. Here are the flags of a launch
line, which are read as SGLang spells them, the exit codes, and what is said to who mistypes one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import typer

from ringfold.fuzz.commands.configuration import parse
from ringfold.sim.configuration.flags import Configuration, Drafts

SPEC = "--enable-linear-replayssm-spec"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`ringfold configuration` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "ringfold", "configuration", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def check(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and object of a check."""
    done = run("check", *arguments, "--json")
    return done.returncode, dict(json.loads(done.stdout))


def test_the_table_is_printed_for_one_release() -> None:
    """Rules with what they do and where they stand; those of other releases are left out."""
    done = run("show", "--release", "0.5.16")

    assert done.returncode == 0, done.stderr
    assert "room for two windows" in done.stdout
    assert "srt/server_args.py:_validate_gdn_replayssm_spec_ring" in done.stdout
    assert "memory for rings" not in done.stdout


def test_the_table_as_json_has_every_rule() -> None:
    """One object, with the reasons too."""
    rules = json.loads(run("show", "--json").stdout)["rules"]

    assert len(rules) > 30
    assert all(rule["reason"] and rule["where"] for rule in rules)


def test_safe_flags_are_zero_and_unsafe_ones_are_one() -> None:
    """The same launch line on two releases."""
    line = (SPEC, "--speculative-algorithm", "NEXTN", "--mamba-radix-cache-strategy=auto")
    good, safe = check("--release", "0.5.23", *line)
    bad, unsafe = check("--release", "0.5.16", *line)

    assert (good, bad) == (0, 1)
    assert safe["safe"]
    assert safe["replays"]
    assert not unsafe["refused_by"]
    assert unsafe["hazards"][0]["name"] == "a prefix is kept with a state that nobody stored"


def test_a_refusal_names_its_rule() -> None:
    """Told apart from whether it is safe."""
    code, found = check("--release", "0.5.16", SPEC, "--mamba-ssm-dtype", "bfloat16")

    assert found["refused_by"] == ["float32 state"]
    assert code == 0


def test_a_flag_that_plays_no_part_is_refused_with_those_that_do() -> None:
    """Bad input is 2."""
    done = run("check", "--tp-size", "4")

    assert done.returncode == 2
    assert "--tp-size plays no part in replay. These do: " in done.stderr
    assert SPEC in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("check", "--release", "0.6.0"), "choose one of 0.5.16 to 0.5.23"),
        (("check", "--page-size", "x"), "must be an integer in 1..65536"),
        (("check", "--speculative-num-draft-tokens", "-4"), "is '-4', but must be an integer in"),
        (("check", "--linear-replayssm-cache-len", "99999999999"), "an integer in 1..65536"),
        (("check", "--model", "rwkv"), "model is 'rwkv', but must be one of gdn, kda, mamba2"),
        (("check", "--speculative-algorithm"), "algorithm is '', but must be one of none, NEXTN"),
        (("check", "--dtype", "int8"), "activation is 'int8', but must be one of"),
        (("check", "--disaggregation-mode", "both"), "disaggregation"),
        (("compare", "sglang"), "is no release: write sglang==VERSION"),
        (("show", "--release", "x"), "is not known"),
    ],
)
def test_errors_name_value_limit_and_way_out(arguments: tuple[str, ...], said: str) -> None:
    """One sentence, exit code 2."""
    done = run(*arguments)

    assert done.returncode == 2
    assert said in done.stderr


def test_a_launch_line_is_read_as_sglang_spells_it() -> None:
    """Both flags make both protocols; a disabled cache wins over a strategy."""
    facts = {"model": "gdn", "hardware": "h200", "record": "bfloat16"}
    line = (
        "--enable-linear-replayssm --enable-gdn-replayssm-spec --speculative-algorithm EAGLE "
        "--speculative-num-steps 3 --speculative-eagle-topk=1 --dtype half "
        "--disable-radix-cache --mamba-radix-cache-strategy no_buffer"
    )

    assert parse(line.split(), facts) == Configuration(
        replay="both", drafts=Drafts(3, 1), activation="float16", radix="off"
    )
    assert parse([], facts).algorithm == "none"
    with pytest.raises(typer.BadParameter):
        parse(["--page-size"], facts)
