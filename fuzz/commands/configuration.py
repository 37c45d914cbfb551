"""`ringfold configuration`: which flags SGLang takes, which are safe, and where the two differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
import typer
from rich.table import Table

from ringfold.fuzz.commands.options import AGREE, INCONCLUSIVE, MISMATCH, writable_file
from ringfold.fuzz.configure.compare import Comparison
from ringfold.fuzz.configure.compare import compare as compare_release
from ringfold.fuzz.console import AsJson, out, print_json, print_table, progress_display
from ringfold.fuzz.findings.failures import write_json
from ringfold.fuzz.targets.environments import BuildError
from ringfold.fuzz.targets.registry import MissingTargetError
from ringfold.sim.configuration.flags import Configuration, Drafts, neighbours
from ringfold.sim.configuration.rules import RULES, refusals, rules_of
from ringfold.sim.configuration.safety import HAZARDS, judge
from ringfold.sim.configuration.serving import RELEASES, release_of

NUMBER_MAX: Final = 65_536
"""Of lengths and counts: every position of a ring is walked."""
NEWEST: Final = RELEASES[-1].last
OfRelease = Annotated[
    str, typer.Option("--release", metavar="VERSION", help="Of SGLang, such as 0.5.16.")
]

configuration_app = typer.Typer(
    help="Which flags SGLang takes, which are safe, and where the two differ.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@configuration_app.command()
def show(
    release: Annotated[
        str | None,
        typer.Option("--release", metavar="VERSION", help="Only the rules of this one. [all]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the rules by which SGLang takes, changes or refuses flags of replay."""
    if release is not None:
        _known(release)
    rules = RULES if release is None else tuple(rules_of(release))
    if as_json:
        names = ("name", "first", "last", "reads", "what", "reason", "effect", "where")
        print_json({"rules": [{name: getattr(rule, name) for name in names} for rule in rules]})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("rule", "releases", "does", "reads", "where"):
        table.add_column(heading, no_wrap=True)
    for rule in rules:
        since = rule.first if rule.first == rule.last else f"{rule.first} to {rule.last}"
        where = ":".join(rule.where)
        table.add_row(rule.name, since, rule.what, ", ".join(rule.reads), where)
    print_table(table)


SWITCHES: Final[dict[str, dict[str, Any]]] = {
    "--enable-gdn-replayssm-spec": {"replay": "spec"},
    "--enable-linear-replayssm-spec": {"replay": "spec"},
    "--enable-linear-replayssm": {"replay": "decode"},
    "--speculative-adaptive": {"adaptive": True},
    "--disable-radix-cache": {"radix": "off"},
    "--disable-overlap-schedule": {"overlap": False},
    "--enable-mixed-chunk": {"mixed": True},
}
VALUES: Final = {
    "--speculative-algorithm": "algorithm",
    "--speculative-ngram-max-bfs-breadth": "breadth",
    "--linear-attn-backend": "backend",
    "--linear-attn-decode-backend": "backend",
    "--mamba-radix-cache-strategy": "radix",
    "--linear-replayssm-cache-len": "ring",
    "--mamba-ssm-dtype": "state",
    "--dtype": "activation",
    "--disaggregation-mode": "disaggregation",
    "--page-size": "page",
}
DRAFTS: Final = {
    "--speculative-num-steps": "steps",
    "--speculative-eagle-topk": "topk",
    "--speculative-num-draft-tokens": "tokens",
}
ALIASES: Final = {
    "--speculative-algorithm": {"EAGLE": "NEXTN", "EAGLE3": "NEXTN"},
    "--dtype": {"auto": "bfloat16", "half": "float16", "float": "float32"},
}


@configuration_app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def check(
    context: typer.Context,
    release: OfRelease = NEWEST,
    model: Annotated[str, typer.Option(metavar="gdn|kda|mamba2", help="Its layers.")] = "gdn",
    hardware: Annotated[str, typer.Option(metavar="h200|b200|mi300|cpu")] = "h200",
    conv_dtype: Annotated[
        str, typer.Option(help="SGLANG_MAMBA_CONV_DTYPE, of convolution windows and rings.")
    ] = "bfloat16",
    as_json: AsJson = False,
) -> None:
    """Judge a server's flags: does the release take them, and is that safe?

    FLAGS are those of `sglang.launch_server`, as they are typed there.
    """
    facts = {"model": model, "hardware": hardware, "record": conv_dtype}
    flags = parse(context.args, facts)
    _known(release)
    verdict = judge(flags, release_of(release))
    early, late = refusals(flags, release), refusals(flags, release, late=True)
    if as_json:
        print_json(
            {
                "release": release,
                "configuration": msgspec.to_builtins(flags),
                "refused_by": [rule.name for rule in (*early, *late)],
                "safe": verdict.safe,
                "hazards": [
                    {"name": h.name, "reason": h.reason, "event": h.event} for h in verdict.hazards
                ],
                "replays": verdict.serving.replays,
                "fallback": verdict.serving.fallback,
            }
        )
    else:
        for rule in (*early, *late):
            out.print(f"SGLang {release} {rule.what}: {rule.name}, {rule.reason}")
        if not early and not late:
            out.print(f"SGLang {release} takes these flags.")
        for hazard in verdict.hazards:
            out.print(
                f"unsafe: {hazard.name}; {hazard.reason}. It happens when {hazard.event}.",
            )
        if verdict.safe:
            way = verdict.serving.fallback or "windows are verified from records"
            out.print(f"safe: {way}.")
    raise typer.Exit(AGREE if verdict.safe else MISMATCH)


def parse(arguments: list[str], facts: dict[str, str]) -> Configuration:
    """Flags of a launch line; raises `BadParameter` for one that plays no part here."""
    given: dict[str, Any] = {"replay": "off", "algorithm": "none", "radix": "auto", **facts}
    drafts: dict[str, int] = {}
    for flag, value in _pairs(arguments):
        if flag in SWITCHES:
            switched = SWITCHES[flag]
            both = {given["replay"], switched.get("replay")} == {"spec", "decode"}
            given |= {"replay": "both"} if both else switched
        elif flag in DRAFTS:
            drafts[DRAFTS[flag]] = _number(flag, value)
        elif flag in VALUES:
            name, said = VALUES[flag], ALIASES.get(flag, {}).get(value, value)
            given[name] = _number(flag, said) if name in ("breadth", "ring", "page") else said
        else:
            known = ", ".join(sorted([*SWITCHES, *VALUES, *DRAFTS]))
            raise typer.BadParameter(f"{flag} plays no part in replay. These do: {known}")
    if "--disable-radix-cache" in arguments:
        given["radix"] = "off"
    for name, kind in get_type_hints(Configuration).items():
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        if choices and given.get(name, choices[0]) not in choices:
            raise typer.BadParameter(
                f"{name} is {given[name]!r}, but must be one of {', '.join(choices)}: name one"
            )
    try:
        return msgspec.convert({**given, "drafts": Drafts(**drafts)}, Configuration)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(str(error)) from None


def _pairs(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Flags with their values, which may stand behind a space or a `=`; switches have none."""
    rest = iter(arguments)
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if equals and flag in SWITCHES:
            raise typer.BadParameter(f"{argument!r}: {flag} is a switch, and takes no value")
        if not equals and flag not in SWITCHES:
            value = next(rest, "")
        yield flag, value


def _number(flag: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if not 1 <= number <= NUMBER_MAX:
        raise typer.BadParameter(f"{flag} is {value!r}, but must be an integer in 1..{NUMBER_MAX}")
    return number


def _known(release: str) -> None:
    try:
        release_of(release)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--release") from None


@configuration_app.command()
def compare(
    target: Annotated[str, typer.Argument(metavar="sglang==VERSION", help="The release to ask.")],
    changes: Annotated[
        int,
        typer.Option(min=0, max=2, help="How many axes may differ from the base at a time."),
    ] = 2,
    run: Annotated[
        bool, typer.Option(help="Exercise what is accepted on the release's own pool and backend.")
    ] = True,
    save: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.json", help="Keep every row as JSON.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a release about every configuration near the base, and compare it with the simulator.

    What is accepted though unsafe, refused though safe, or crashes late; 1 if anything is accepted
    that is not safe.
    """
    family, _, version = target.partition("==")
    if family != "sglang" or not version:
        raise typer.BadParameter(f"{target!r} is no release: write sglang==VERSION")
    _known(version)
    writable_file(save, "--out")
    asked = list(dict.fromkeys(neighbours(changes)))
    with progress_display() as progress:
        task = progress.add_task(f"{target}: importing", total=None)
        try:
            found = compare_release(
                target, asked, run, lambda text: progress.update(task, description=text)
            )
        except BuildError as error:
            raise MissingTargetError(str(error)) from None
    if save is not None:
        write_json(save, found)
    if as_json:
        print_json(found)
    else:
        _show(found)
    unsafe = {"accepted but unsafe", "crashes late"} & found.outcomes.keys()
    open_ends = found.surprises or found.stopped
    raise typer.Exit(MISMATCH if unsafe else INCONCLUSIVE if open_ends else AGREE)


def _show(found: Comparison) -> None:
    out.print(
        f"SGLang {found.release} ({found.dialect}): {found.configurations} configurations, "
        f"{found.exercised} exercised.",
    )
    table = Table("", "configurations", box=None, pad_edge=False)
    for outcome, count in sorted(found.outcomes.items(), key=lambda item: -item[1]):
        table.add_row(outcome, str(count))
    print_table(table)
    for name, entry in found.shown.items():
        hazard = next(hazard for hazard in HAZARDS if hazard.name == name)
        out.print()
        out.print(
            f"{name}: in {entry['accepted']} configurations that are accepted. {hazard.reason}; "
            f"it happens when {hazard.event}.",
        )
        if shown := entry["shown"]:
            told = shown["as"]
            at = told.get("event") or told.get("where")
            out.print(f"shown with {shown['changes']} ({at}): {told['text']}")
        else:
            out.print("not shown by running")
    for rule, entry in found.safe_refusals.items():
        out.print()
        out.print(
            f"refused though safe, by {rule}: {entry['refused']}, as {entry['first']}",
        )
    for surprise in found.surprises:
        out.print(f"surprise: {surprise}")
    if found.stopped:
        out.print("inconclusive: stopped by hand")
