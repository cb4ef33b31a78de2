"""One thing that differs between two keys, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass

from flexwarm.canonical import StrEnum

#: What is said of a part that only the other key has.
UNSET = "unset"


class CauseKind(StrEnum):
    """What kind of thing differs. The order is how telling it is: of the first ones much else is a consequence."""

    TORCH = "torch"
    TRITON = "triton"
    CUDA = "cuda"
    GPU = "gpu"
    DEVICE = "device"
    DYNAMIC = "dynamic"
    SHAPE = "shape"
    DTYPE = "dtype"
    STRIDE = "stride"
    MASK = "mask"
    SCORE = "score"
    CONSTANT = "constant"
    INPUTS = "inputs"
    KERNEL = "kernel"
    LINE = "line"
    SPECIALIZATION = "specialization"
    GRADIENT = "gradient"
    AUTOCAST = "autocast"
    GRAPH = "graph"
    PRECISION = "precision"
    DETERMINISM = "determinism"
    THREADS = "threads"
    SETTING = "setting"
    OTHER = "other"


#: How a cause is said after its subject.
_SAID = {
    CauseKind.DEVICE: "is on {new}, and on {old}",
    CauseKind.SHAPE: "has the shape {new}, and {old}",
    CauseKind.DTYPE: "has the dtype {new}, and {old}",
    CauseKind.STRIDE: "has the strides {new}, and {old}",
    CauseKind.CONSTANT: "has the number {new}, and {old}",
    CauseKind.MASK: "has `{new}`, and `{old}`",
    CauseKind.SCORE: "has `{new}`, and `{old}`",
    CauseKind.GRAPH: "has `{new}`, and `{old}`",
    CauseKind.KERNEL: "has `{new}`, and `{old}`",
}
_PLURAL = {"is": "are", "has": "have"}


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that a user changed, or that is not the same here.

    Attributes:
        subject: what differs: ``input 0``, ``max_autotune``, ``the mask function``.
        old, new: in short; :data:`UNSET` where only the other has it.
    """

    kind: CauseKind
    subject: str
    old: str
    new: str

    def __str__(self) -> str:
        said = _SAID.get(self.kind, "is {new}, and {old}")
        if self.old.startswith("content ") or self.new.startswith("content "):
            said = "has {new}, and {old}"
        verb, _, rest = said.partition(" ")
        if self.subject.startswith(("inputs ", "arguments ")) or self.subject.endswith(" more"):
            verb = _PLURAL[verb]
        return f"{self.subject} {verb} {rest.format(old=self.old, new=self.new)} when this was built"
