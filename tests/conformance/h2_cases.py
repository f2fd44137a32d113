"""The requirements of RFC 9113 and RFC 7541 for a server: cases of frames and their outcomes.

The sections are those of the two RFCs; the selection follows what h2spec looks at, and goes on where
it stops.
"""

from __future__ import annotations

from tests.conformance.h2_case import Case
from tests.conformance.h2_fields import FIELDS, HPACK
from tests.conformance.h2_kinds import KINDS
from tests.conformance.h2_states import FRAMES, PREFACES, STATES

CASES: dict[str, Case] = {
    case.name: case for case in (*PREFACES, *FRAMES, *STATES, *KINDS, *FIELDS, *HPACK)
}
