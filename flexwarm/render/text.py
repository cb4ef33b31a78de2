"""Raw numbers as people read them."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """``0.042`` as ``42 ms``, ``93.5`` as ``1 m 34 s``; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 0.995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} m {rest} s"


def size(value: int) -> str:
    """Bytes in decimal units: ``353.0 MB``."""
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError("the last unit always returns")
