"""A null GPU that another flexwarm has made is no real GPU, and none that this one can follow."""

from __future__ import annotations

import pytest

from flexwarm.errors import UnsupportedError
from flexwarm.observer import stand_in


class Older:
    """It says which profile it has, and knows nothing of what was asked for since."""

    @staticmethod
    def nullgpu_profile() -> bytes:
        return b"/profile"


def test_one_of_another_flexwarm_is_present_told_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "_driver", Older)
    assert (stand_in.present(), stand_in.is_own()) == (True, False)
    assert stand_in.identity() == "a null GPU of another flexwarm"
    with pytest.raises(UnsupportedError, match="another flexwarm is preloaded"):
        stand_in.refuse_others()


def test_where_there_is_none_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "_driver", lambda: None)
    assert (stand_in.present(), stand_in.is_own()) == (False, False)
    stand_in.refuse_others()
