"""Writes the values of release/publisher.toml into the files that must repeat them.

python release/publisher.py             write the files
python release/publisher.py --check     write nothing; exit 1 if a file differs
python release/publisher.py --filled    write nothing; exit 1 while a value is a placeholder
python release/publisher.py KEY         print a value
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
VALUES: Final = ROOT / "release" / "publisher.toml"
PLACEHOLDER: Final = "OWNER"

# What `releases` owns, besides everything of `maintainers`.
_RELEASED: Final = (".github", "release", "requirements", "deploy")


def values() -> dict[str, str]:
    """Return the values by key."""
    found: dict[str, str] = tomllib.loads(VALUES.read_text("utf-8"))
    return found


def files(found: Mapping[str, str]) -> dict[str, str]:
    """Return the contents of the files that repeat the values, by path."""
    return {
        "pyproject.toml": _with_urls((ROOT / "pyproject.toml").read_text("utf-8"), found),
        ".github/CODEOWNERS": _owners(found),
        ".github/ISSUE_TEMPLATE/config.yml": _contacts(found["repository"]),
    }


def _with_urls(project: str, found: Mapping[str, str]) -> str:
    source = found["repository"]
    urls = {
        "Documentation": found["documentation"],
        "Source": source,
        "Issues": f"{source}/issues",
        "Changelog": f"{source}/blob/main/CHANGELOG.md",
    }
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    section = re.compile(r"^\[project\.urls\]\n(?:.+\n)*", re.MULTILINE)
    return section.sub(lambda _: f"[project.urls]\n{lines}", project, count=1)


def _owners(found: Mapping[str, str]) -> str:
    owned = {
        "*": found["maintainers"],
        **{f"/{path}/": found["releases"] for path in _RELEASED},
        "/SECURITY.md": found["security"],
    }
    lines = "".join(f"{path:<24}{owner}\n" for path, owner in owned.items())
    return f"# Who reviews what; a later line wins. release/publisher.py writes this file.\n{lines}"


def _contacts(repository: str) -> str:
    return (
        "# release/publisher.py writes this file.\n"
        "blank_issues_enabled: true\n"
        "contact_links:\n"
        "  - name: A vulnerability\n"
        f"    url: {repository}/security/policy\n"
        "    about: SECURITY.md says how to report it in private.\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments say."""
    found = values()
    if arguments and arguments[0] in found:
        print(found[arguments[0]])
        return 0
    if arguments == ["--filled"]:
        missing = [key for key, value in found.items() if PLACEHOLDER in value or not value]
        for key in missing:
            print(f"{VALUES.name}: {key} is {found[key]!r}; expected a value without {PLACEHOLDER}")
        return 1 if missing else 0
    if arguments not in ([], ["--check"]):
        print(f"expected nothing, --check, --filled, or one of {', '.join(found)}")
        return 2
    stale = [
        name for name, text in files(found).items() if (ROOT / name).read_text("utf-8") != text
    ]
    for name in stale:
        if arguments:
            print(f"{name} differs from {VALUES.name}: run make regenerate")
        else:
            (ROOT / name).write_text(files(found)[name], encoding="utf-8")
    return 1 if stale and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
