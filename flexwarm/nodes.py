"""What the nodes of one launch have, and in what they differ. Pure.

Each node has a flexwarm of its own, which sees the ranks of its node and nothing else. Without more, the verdict on a warm
node is "warm" while the launch compiles for minutes on another one, or it says that the command failed and not why. So each
tells the others what it has, through the rendezvous of the job itself (:mod:`flexwarm.attach.meeting`).

What may differ between nodes, and what that means:

- **The fingerprint** must not. The ranks of one job would run kernels of two toolchains; and a bucket that was built on one
  node is none for the other. The node that stands alone is named, with the components that differ.
- **What a fingerprint only records**, such as the driver or a variable, may differ. It makes no kernel wrong, and can make a
  key miss, so it is a note.
- **Nothing built** on one node means that its ranks compile, if they make compiled calls at all; a build leaves something.
- **Other keys** on one node prove nothing. Keys have the device's index in them, the shapes that a rank meets, the role that
  it plays: where each node has a store of its own, each build records what the ranks of that node asked for, and a launch
  whose nodes do different work is warm with sets that have not one key in common. Nor can the number be held against a node:
  one that compiles less has fewer. So it is a note and no reason. Whether the ranks of a node have what they need is
  proven where they run, by that node's own flexwarm, key by key. A note it is because of what else it may mean: an older
  build on one node; or nodes that will change places in the next launch (torchrun's rendezvous numbers them as they come),
  where each would then lack the other's keys. A store that all share has neither problem.
- **A miss** on one node is certain, and a reason on every other one. The rank that is stopped there says so itself.

Times and paths of files are not compared: two stores that were built apart differ in them and have the same kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flexwarm import canonical
from flexwarm.canonical import StrEnum
from flexwarm.fingerprint import Change, Fingerprint, differences
from flexwarm.typed import wrong_field

#: Components that a sentence names.
_NAMED = 3
#: What each flexwarm sets for its own ranks, whatever the node has.
_OVERRULED = frozenset({"env.TORCHINDUCTOR_CACHE_DIR", "env.TRITON_CACHE_DIR"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What one flexwarm knows of its own node before its ranks start.

    Attributes:
        store: the store's root, to tell two nodes of one host name apart.
        bucket: digest of the fingerprint.
        components: those that select the bucket.
        built: a build has finished in the bucket.
        explain: those that are only recorded.
        keys: how many its manifest lists; ``keys_digest`` is of the sorted set of them.
    """

    host: str
    store: str
    bucket: str
    components: Mapping[str, str]
    built: bool
    keys: int
    keys_digest: str
    explain: Mapping[str, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(select=self.components, explain=self.explain)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NodeFacts | None:
        """Inverse of :func:`flexwarm.canonical.plain`; None for what another flexwarm says, which is then not compared."""
        try:
            facts = cls(**data)
        except TypeError:
            return None
        return facts if wrong_field(facts) is None else None


class NodeFinding(StrEnum):
    """In what a node differs from the others."""

    FINGERPRINT = "fingerprint"
    RECORDED = "recorded"
    COLD = "cold"
    KEYS = "keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One node that differs; ``node`` is its number in the run, ``message`` names it."""

    what: NodeFinding
    node: str
    message: str


def digest_of_keys(keys: Iterable[tuple[str, str]]) -> str:
    """The same for two nodes whose manifests list the same (layer, key)."""
    return canonical.digest(sorted(set(keys)))


def names(nodes: Mapping[str, NodeFacts]) -> dict[str, str]:
    """Node -> its name for people: the host, and the store where two flexwarms have one host name."""
    hosts = [facts.host for facts in nodes.values()]
    return {
        node: facts.host if hosts.count(facts.host) == 1 else f"{facts.host} (store {facts.store})"
        for node, facts in nodes.items()
    }


def compare(nodes: Mapping[str, NodeFacts]) -> tuple[Finding, ...]:
    """Each node that is not as the others; the same on every node that is told the same."""
    called = names(nodes)
    ordered = sorted(nodes, key=lambda node: (called[node], node))
    return (
        *_fingerprints(nodes, ordered, called),
        *_recorded(nodes, ordered, called),
        *_cold(nodes, ordered, called),
        *_keys(nodes, ordered, called),
    )


def changes(nodes: Mapping[str, NodeFacts]) -> dict[str, tuple[Change, ...]]:
    """Node -> every component in which it is not as the node that it is held against, which has none itself.

    ``old`` is that node's, ``new`` its own. With a flexwarm that told only what selects, nothing else is compared.
    """
    called = names(nodes)
    ordered = sorted(nodes, key=lambda node: (called[node], node))
    if not ordered:
        return {}
    first = nodes[_usual(nodes, ordered)]
    found = {}
    for node in ordered:
        every = differences(first.fingerprint, nodes[node].fingerprint)
        both = bool(first.explain and nodes[node].explain)
        found[node] = tuple(change for change in every if change.selects or (both and change.component not in _OVERRULED))
    return found


def _usual(nodes: Mapping[str, NodeFacts], ordered: Sequence[str]) -> str:
    """The node that the others are held against: one of what most have; of two that are alone, the first by name."""
    buckets = [nodes[node].bucket for node in ordered]
    usual = max(dict.fromkeys(buckets), key=buckets.count)
    alike = [node for node in ordered if nodes[node].bucket == usual]
    tables = [canonical.text(dict(nodes[node].explain)) for node in alike]
    return alike[tables.index(max(dict.fromkeys(tables), key=tables.count))]


def _fingerprints(nodes: Mapping[str, NodeFacts], ordered: Sequence[str], called: Mapping[str, str]) -> list[Finding]:
    differing = changes(nodes)
    found = []
    for node in ordered:
        selecting = [change for change in differing[node] if change.selects]
        if nodes[node].bucket != nodes[_usual(nodes, ordered)].bucket:
            told = _told(selecting)
            message = f"node {called[node]} has another fingerprint than node {called[_usual(nodes, ordered)]}: {told}"
            found.append(Finding(what=NodeFinding.FINGERPRINT, node=node, message=message))
    return found


def _recorded(nodes: Mapping[str, NodeFacts], ordered: Sequence[str], called: Mapping[str, str]) -> list[Finding]:
    differing = changes(nodes)
    found = []
    for node in ordered:
        recorded = [change for change in differing[node] if not change.selects]
        if recorded:
            first = called[_usual(nodes, ordered)]
            message = f"node {called[node]} is not as node {first} in what can make a key miss: {_told(recorded)}"
            found.append(Finding(what=NodeFinding.RECORDED, node=node, message=message))
    return found


def _told(changed: Sequence[Change]) -> str:
    told = "; ".join(f"{x.component} is {_shown(x.new)}, not {_shown(x.old)}" for x in changed[:_NAMED])
    return told + (f"; and {len(changed) - _NAMED} more" if len(changed) > _NAMED else "")


def _cold(nodes: Mapping[str, NodeFacts], ordered: Sequence[str], called: Mapping[str, str]) -> list[Finding]:
    return [
        Finding(
            what=NodeFinding.COLD,
            node=node,
            message=f"node {called[node]}: nothing was built in bucket {nodes[node].bucket} of its store {nodes[node].store}",
        )
        for node in ordered
        if not (nodes[node].built and nodes[node].keys)
    ]


def _keys(nodes: Mapping[str, NodeFacts], ordered: Sequence[str], called: Mapping[str, str]) -> list[Finding]:
    warm = [node for node in ordered if nodes[node].built and nodes[node].keys]
    found = []
    for bucket in dict.fromkeys(nodes[node].bucket for node in warm):
        alike = [node for node in warm if nodes[node].bucket == bucket]
        sets = [nodes[node].keys_digest for node in alike]
        if len(set(sets)) < 2:
            continue
        usual = max(dict.fromkeys(sets), key=sets.count)
        first = next(node for node in alike if nodes[node].keys_digest == usual)
        for node in alike:
            if nodes[node].keys_digest != usual:
                message = (
                    f"node {called[node]} has other keys than node {called[first]} ({nodes[node].keys} and "
                    f"{nodes[first].keys}): right where their ranks call different things, and then they must not change places"
                )
                found.append(Finding(what=NodeFinding.KEYS, node=node, message=message))
    return found


def _shown(value: str | None) -> str:
    return "absent" if value is None else repr(value)
