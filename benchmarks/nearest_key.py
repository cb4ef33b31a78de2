"""How long it takes to find the nearest of many keys, and to say in what it differs.

    python benchmarks/nearest_key.py [--keys 2000] [--rounds 9]

Builds two real graphs in a store of its own, makes many keys of each by changing one length, one constant of the mask and
one setting in them, and writes these beside the bucket as a build would. Then a key that is none of them is explained, in
turns: reading the file, and finding and explaining. Prints one table, in Markdown. Needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from flexwarm import canonical, key_store
from flexwarm.explanation import Explained, explain
from flexwarm.key_parts import Group, Key, Part
from flexwarm.store import Bucket, Store

SPEC = """
schema = 1
[[role]]
name = "r"
devices = "cpu"
[[workload]]
name = "w"
mask_mod = "sliding_window"
mask_args = { window = 7777 }
q_heads = 2
head_dim = 32
q_len = 1280
dtype = "float32"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bucket = build(Path(name))
        real = [key for key in key_store.load(bucket) if key.layer != "triton"]
        variants = [varied(key, number) for number in range(given.keys // len(real)) for key in real]
        key_store.append(bucket, variants)
        known, missed = key_store.load(bucket), varied(real[-1], given.keys * 10)
        reading = seconds(given.rounds, lambda: key_store.load(bucket))
        finding = seconds(given.rounds, lambda: found(missed, known))
        size = bucket.keys.stat().st_size
    print(f"{len(known)} keys, {size / 1e6:.1f} MB, medians of {given.rounds} rounds (least to most)\n")
    print("| | seconds |\n|---|---|")
    for what, times in (("reading the keys", reading), ("finding and explaining the nearest", finding)):
        print(f"| {what} | {statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f}) |")


def build(directory: Path) -> Bucket:
    (directory / "flexwarm.toml").write_text(SPEC)
    argv = [sys.executable, "-m", "flexwarm", "build", "flexwarm.toml", "--store", "store"]
    subprocess.run(argv, cwd=directory, check=True, capture_output=True)
    store = Store.open(directory / "store", create=False)
    return next(iter(store.buckets()))


def varied(key: Key, number: int) -> Key:
    """The same with another length, window and setting; all else is shared, as between the keys of a real bucket."""
    changes = {"1280": str(1280 + number), "7777": str(7777 + number)}

    def part(part: Part) -> Part:
        text = part.text
        for old, new in changes.items():
            text = text.replace(old, new)
        if part.name == "inductor_config[max_fusion_size]":
            text = str(64 + number % 5)
        return part if text == part.text else replace(part, text=text, digest=canonical.digest(text))

    def group(group: Group) -> Group:
        parts = {name: part(one) for name, one in group.parts.items()}
        if parts == group.parts:
            return group
        return Group(digest=canonical.digest([[one.name, one.digest] for one in parts.values()]), parts=parts)

    groups = {name: group(one) for name, one in key.groups.items()}
    return Key(layer=key.layer, key=canonical.digest([key.key, number], 64), groups=groups)


def found(missed: Key, known: Iterable[Key]) -> Explained:
    explained = explain(missed, list(known), frozenset())
    assert explained is not None
    assert explained.causes
    return explained


def seconds(rounds: int, run: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    main()
