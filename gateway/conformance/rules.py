"""Rules of protocols, as data: what is asked, which answers are allowed, and who says so.

`<protocol>_<carrier>.yaml` in this folder has the rules of one protocol over one carrier:

```yaml
rules:
- id: infer.$kind.binary         # the stable name; its first part is the group
  says: An inference in this form returns these values, to the bit.
  source: who says so, such as inference_rest.md, line 244; or two servers that showed it
  each: {kind: [FP16, BF16]}         # one rule for each value, or values at a place of several
                                     # lists; `$kind` is replaced in all texts
  needs: {identity: true}            # see below; without what it needs, nothing can be told
  open: why                          # the specification leaves it open: it is never a fault
  steps: [...]                       # several requests, or the keys of a single one beside `id`
```

A request over HTTP has one of `get: PATH`, `post: PATH` (with `json`, or the text `body`) or
`infer: json`, or `binary` or `mixed`: an inference of the chosen model in that form. Over gRPC it
has `call: SERVICE/METHOD` (with `message`, in the JSON form of protobuf) or `infer: raw` or
`contents`; `stream: true` sends it over a stream. GraphPipe has `post: ""`, since the URL is that
of the model, with `message: {TABLE: {...}}`; `table` is the root of the reply. These change it:

- `values`: which values the inputs have (`values.yaml`), `plain` by default, `empty` or `large`.
- `set: {PATH: VALUE}` and `drop: [PATH]`: members of the JSON or the message, as `inputs.0.shape`.
- over HTTP `path`, `headers`, `append` (text behind the body) and `cut` (bytes that its end lacks).

`answer` is one allowed answer, or a list of them; each has

- `status`: `200`, `4xx`, `NOT_FOUND`, `nothing` (a stream that ends at once), or a list. Needed.
- `body`: a pattern of the JSON or the message. An object must have the named members, those with
  `?` only where the reply has them; the items of a list match `[PATTERN]`, and one of them
  `{$some: PATTERN}`; `{$equal: VALUE}` is a list that is equal; `$string`, `$filled` (no empty
  text), `$number`, `$boolean`, `$object`, `$datatype`, `$size` and `$absent` are kinds of values;
  anything else must be equal.
- `headers`: regular expressions by name.
- `outputs`: `declared` (as the model's metadata say), `known` (these bits, too) or `classes`.
- `form`: `json`, `binary`, `raw` or `contents`: how the outputs come.
- `names`: the outputs that come, and no others.

Texts that begin with `$` are facts: `$model`, `$version`, `$output`, `$last_output`, a number as
`$seeded`, and of the first input `$nested` (its data), `$longer` (its shape with one more in the
last dimension), `$deeper` (with one more dimension), `$other` (another datatype), and `$ones`, or
raw `$zeros`, of that; and `$deep_json`. Of the single input `$input` is the name, `$shape`,
`$dims` (as TensorFlow writes it), `$values`, and `$raw` in base64; of the single output
`$known_values` and `$known_raw`. `$columns` and `$rows` are the inputs whose answers
`$known_columns` and `$known_rows` are: by name, or as items; those of a single tensor have no name.
A file without `discovery` is about the models that the user names.

`needs`: `model` (any), `known` (a model with a known answer), `identity`, `datatype`, `first` (the
datatype of the first input), `variable` (a dimension), `matrix` (two dimensions), `version`,
`inputs` (at least so many), `outputs` (if there is such a model), `sequence`, `decoupled`;
`extension`, whose absence from the server's list excuses a difference; `understood`, the same but
where a success shows that the server knows it; `control` and `hurt` (flags of the command); `every`
(asked of several models).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

_ANSWER_KEYS: Final = {"status", "body", "headers", "outputs", "form", "names"}
_STEP_KEYS: Final = {
    *("get", "post", "json", "body", "infer", "call", "message", "stream", "values"),
    *("set", "drop", "path", "headers", "append", "cut", "table", "answer"),
}
_RULE_KEYS: Final = {"id", "says", "source", "each", "needs", "open", "steps"}


@dataclass(frozen=True, slots=True)
class AllowedReply:
    """One allowed answer; see the text of the module."""

    status: tuple[str, ...]
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    outputs: str = ""
    form: str = ""
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RuleStep:
    """One request, and the answers that are allowed."""

    request: Mapping[str, Any]
    answers: tuple[AllowedReply, ...]


@dataclass(frozen=True, slots=True)
class ConformanceRule:
    """One rule.

    Attributes:
        says: What it expects, in words.
        open: Why the specification leaves it open; "" for a rule that servers must keep.
    """

    id: str
    says: str
    source: str
    steps: tuple[RuleStep, ...]
    needs: Mapping[str, Any] = field(default_factory=dict)
    open: str = ""

    @property
    def group(self) -> str:
        """The first part of the id."""
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class KnownDifference:
    """What is known of one kind of servers.

    Attributes:
        server: A part of the name that the server gives itself, in lower case.
        rules: The ids of rules, or groups.
        what: What the server does.
        gateway: What the gateway does about it.
    """

    server: str
    rules: Sequence[str]
    what: str
    gateway: str


def is_named(rule: str, names: Sequence[str]) -> bool:
    """Return whether one of *names* is the id of a rule, or the part of it before a dot."""
    return any(rule == name or rule.startswith(f"{name}.") for name in names)


@cache
def load_rules(protocol: str) -> tuple[ConformanceRule, ...]:
    """Return the rules of a protocol such as `oip+http`.

    Raises:
        LookupError: There are none.
    """
    name = _file_of(protocol)
    if name not in _rule_files():
        known = sorted(name[:-5].replace("_", "+") for name in _rule_files())
        raise LookupError(f"there are no rules of {protocol!r}; expected one of {known}")
    return parse_rules(load_data(name))


def load_discovery(protocol: str) -> Mapping[str, Any] | None:
    """Return how a server of a protocol with rules describes itself; None if it does not."""
    found: Mapping[str, Any] | None = load_data(_file_of(protocol)).get("discovery")
    return found


def _file_of(protocol: str) -> str:
    return f"{protocol.replace('+', '_')}.yaml"


def _rule_files() -> list[str]:
    names = [each.name for each in files(__package__).iterdir()]
    return [name for name in names if name.endswith(("_http.yaml", "_grpc.yaml"))]


@cache
def load_data(name: str) -> Any:
    """Return the values of a file of this package."""
    return yaml.safe_load(files(__package__).joinpath(name).read_text("utf-8"))


@cache
def known_differences() -> tuple[KnownDifference, ...]:
    """Return what is known of real servers."""
    return tuple(KnownDifference(**each) for each in load_data("known.yaml"))


def parse_rules(document: Mapping[str, Any]) -> tuple[ConformanceRule, ...]:
    """Return the rules of a file, whose values are *document*.

    Raises:
        ValueError: A key is unknown or missing, or an id occurs twice.
    """
    rules = tuple(rule for entry in document["rules"] for rule in _rules(entry))
    ids = [rule.id for rule in rules]
    for rule in ids:
        if ids.count(rule) > 1:
            raise ValueError(f"the rule {rule!r} occurs twice")
    return rules


def _rules(entry: Mapping[str, Any]) -> Iterator[ConformanceRule]:
    each = entry.get("each")
    if each is None:
        yield _rule(entry)
        return
    for values in zip(*each.values(), strict=True):
        made = entry
        for name, value in zip(each, values, strict=True):
            made = _replaced(made, f"${name}", value)
        yield _rule(made)


def _replaced(value: Any, name: str, by: Any) -> Any:
    if isinstance(value, str):
        return by if value == name else value.replace(name, str(by))
    if isinstance(value, Mapping):
        return {_replaced(key, name, by): _replaced(it, name, by) for key, it in value.items()}
    return [_replaced(inner, name, by) for inner in value] if isinstance(value, list) else value


def _rule(entry: Mapping[str, Any]) -> ConformanceRule:
    name = entry["id"].lower()
    single = {key: value for key, value in entry.items() if key not in _RULE_KEYS}
    steps = entry.get("steps") or [single]
    if entry.get("steps") and single:
        raise ValueError(f"the rule {name!r} has steps, and {sorted(single)} beside them")
    missing = {"says", "source"} - entry.keys()
    if missing:
        raise ValueError(f"the rule {name!r} has no {sorted(missing)}")
    return ConformanceRule(
        name,
        entry["says"],
        entry["source"],
        tuple(_step(name, step) for step in steps),
        entry.get("needs", {}),
        entry.get("open", ""),
    )


def _step(rule: str, step: Mapping[str, Any]) -> RuleStep:
    if unknown := step.keys() - _STEP_KEYS:
        raise ValueError(f"the rule {rule!r} has the unknown keys {sorted(unknown)}")
    answers = step["answer"]
    found = answers if isinstance(answers, list) else [answers]
    request = {key: value for key, value in step.items() if key != "answer"}
    return RuleStep(request, tuple(_answer(rule, answer) for answer in found))


def _answer(rule: str, answer: Mapping[str, Any]) -> AllowedReply:
    if unknown := answer.keys() - _ANSWER_KEYS:
        raise ValueError(f"an answer of the rule {rule!r} has the unknown keys {sorted(unknown)}")
    status = answer["status"]
    statuses = status if isinstance(status, list) else [status]
    return AllowedReply(**{**answer, "status": tuple(map(str, statuses))})
