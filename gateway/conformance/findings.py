"""What a certification finds: one finding for each rule, and one for each model and protocol."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Final

NO_MODELS: Final = "the server lists no models: name one with --model"


@unique
class Verdict(StrEnum):
    """How a server answers one rule of its protocol."""

    KEEPS = "keeps"
    DIFFERS = "differs"
    CANNOT_TELL = "cannot tell"
    SAYS_NOTHING = "says nothing"


@unique
class PairVerdict(StrEnum):
    """How the calls of one client protocol reach one model of a server."""

    WORKS = "works"
    LOSES = "loses"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Subject:
    """The server that is asked.

    Attributes:
        url: As the user gave it, without credentials.
        protocol: Such as `oip+grpc`.
        server: The name that the server gives itself, or an empty text.
        version: The version that the server gives, or an empty text.
    """

    url: str
    protocol: str
    server: str
    version: str


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """What came of one rule.

    Attributes:
        rule: The stable name of the rule, such as `infer.fp16.binary`.
        group: Such as `infer`.
        verdict: Whether the server keeps the rule.
        expected: What the rule expects, in words.
        found: What came, in words, or why nothing can be told.
        source: The document and its line, or the server and its version, that shows the rule.
        request: The request, as a command that a user can run.
    """

    rule: str
    group: str
    verdict: Verdict
    expected: str
    found: str
    source: str
    request: str


@dataclass(frozen=True, slots=True)
class PairFinding:
    """What came of the calls of one client protocol to one model.

    Attributes:
        model: The name of the model.
        protocol: The client's protocol and carrier, such as `graphpipe+http`.
        verdict: Whether they work.
        what: What is lost, by name, or why the call is refused.
        key: The key of the configuration that would change it, or an empty text.
        request: The request, as a command that a user can run.
    """

    model: str
    protocol: str
    verdict: PairVerdict
    what: Sequence[str]
    key: str
    request: str


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was found of one server."""

    subject: Subject
    rules: Sequence[RuleFinding]
    pairs: Sequence[PairFinding]

    def counts(self) -> Mapping[str, int]:
        """Return how often each verdict was given, for rules and pairs together."""
        return Counter(
            str(finding.verdict) for findings in (self.rules, self.pairs) for finding in findings
        )
