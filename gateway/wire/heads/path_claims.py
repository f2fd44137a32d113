"""What protocols claim of the HTTP paths of a listener: one row for each path.

`gateway.app.listen.path_ownership` gives each path to one protocol.
"""

import enum
from typing import NamedTuple


class ClaimKind(enum.Enum):
    """Which protocol has a path that several protocols of a listener claim.

    Attributes:
        EXCLUSIVE: This one. A second such claim is an error.
        SHARED: This one, and what it writes there suits the clients of the protocols that yield the
            path, too.
        LISTED: This one, on a listener that lists the protocol by name. Otherwise another one that
            claims it as `EXCLUSIVE` or `SHARED`.
        YIELDED: Any other protocol that claims it, and the first of several that yield it.
    """

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    LISTED = "listed"
    YIELDED = "yielded"


class Passing(enum.Enum):
    """Which requests for a claimed path go to the server behind `passthrough` of the listener.

    Attributes:
        NOTHING: None.
        WRITES: All methods but GET, HEAD and OPTIONS.
        NAMED: POST, where the passthrough names the path or the server is known to have it.
        UNKEYED: As `NAMED`, and GET and HEAD of the path itself without a credential, unless the
            listener lists the protocol.
        READ: As `UNKEYED`, with or without a credential: the server writes the path itself.
        FOUND: As `NAMED`, and GET and HEAD where the server has the path. Nothing if the listener
            lists the protocol or has options of it, or the server speaks it.
    """

    NOTHING = "nothing"
    WRITES = "writes"
    NAMED = "named"
    UNKEYED = "unkeyed"
    READ = "read"
    FOUND = "found"


class PathClaim(NamedTuple):
    """One path that a protocol claims.

    Attributes:
        path: The path, as on the wire. It has the paths below it, too.
        kind: Who has it where another protocol claims it.
        passes: What goes to the server behind the listener nevertheless.
        is_whole: It is one whole path, without those below it.
        is_public: It asks for the health of the server, and needs no credential.
        option: The option of the listener that adds it; "" if the protocol always has it.
        is_base: The URL of an upstream may have it before the protocol's paths, as an ingress has.
    """

    path: str
    kind: ClaimKind = ClaimKind.EXCLUSIVE
    passes: Passing = Passing.NOTHING
    is_whole: bool = False
    is_public: bool = False
    option: str = ""
    is_base: bool = False

    def is_below(self, other: "PathClaim") -> bool:
        """Return whether the path lies below the one of *other*, and is not the same."""
        return not other.is_whole and self.path.startswith(f"{other.path}/")
