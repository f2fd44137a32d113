"""Resources of Kubernetes in a file, and a gateway before the services that they have.

The servers keep running in the cluster: only their clients move.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from gateway.migration.importers.imported import Imported
from gateway.migration.importers.yaml_setting import YamlSetting, read_documents

_NAME: Final = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")


class ServiceImport:
    """The import of the resources of one file.

    Attributes:
        found: Its result.
        resources: The resources of the wanted kinds.
    """

    def __init__(self, file: Path, kinds: Sequence[str], http: str, grpc: str) -> None:
        """Read a file.

        Args:
            file: The file.
            kinds: The wanted kinds of resources, of which it needs the first.
            http: Address of the listener for HTTP.
            grpc: Address of the listener for gRPC.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not YAML, or has no resource of the first kind. What reads a resource
                raises it for one of another form.
        """
        documents = read_documents(file)
        everything = [
            each
            for document in documents
            for each in (document.all("items") if _is_list(document) else [document])
        ]
        names = sorted({each.text("kind") or "no kind" for each in everything})
        if kinds[0] not in names:
            text = f"found {', '.join(names) or 'an empty list'}; expected kind: {kinds[0]}"
            raise ValueError(f"{file} has no {kinds[0]}: {text}")
        self.found = Imported()
        self.found.config = {
            "version": "1",
            "listeners": [{"name": "main", "http": http, "grpc": grpc}],
            "upstreams": {},
            "routes": [],
        }
        self._names: set[str] = set()
        self.resources = []
        for each in everything:
            if each.text("kind") in kinds:
                self.resources.append(each)
            else:
                name = each.text("metadata", "name")
                self.leave(each, f"{each.text('kind') or 'resource'} {name!r} left out")

    def leave(self, setting: YamlSetting, text: str) -> None:
        """Note a setting without an equivalent."""
        self.found.unmapped.append(setting.unmapped(text))

    def upstream(
        self,
        resource: YamlSetting,
        service: str,
        url: tuple[str, int],
        suffix: str = "",
        **settings: Any,
    ) -> str:
        """Add a service as an upstream, and return its name.

        Args:
            resource: What has the namespace.
            service: Name of the service.
            url: Scheme and port.
            suffix: End of the name, for a further port of a service.
            settings: Other settings of the upstream.

        Raises:
            ValueError: A name has characters that no service has.
        """
        name = f"{service}.{resource.text('metadata', 'namespace') or 'default'}"
        if not _NAME.fullmatch(name):
            raise resource.error(f"{name!r} is no SERVICE.NAMESPACE: expected a-z, 0-9 and -")
        address = f"{url[0]}://{name}.svc.cluster.local:{url[1]}"
        self.found.config["upstreams"][name + suffix] = {"url": address, **settings}
        return name + suffix

    def claim(self, resource: YamlSetting, names: Sequence[str]) -> list[str]:
        """Return the names of models that no resource has yet, and name the others."""
        for name in self._names.intersection(names):
            self.leave(resource, f"model {name!r} left out: another resource has this name")
        own = [name for name in names if name not in self._names]
        self._names.update(own)
        return own

    def route(
        self,
        names: Sequence[str],
        targets: list[dict[str, Any]],
        by_protocol: Mapping[str, list[dict[str, Any]]] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        """Add a route.

        Args:
            names: Names of models that `claim` returned.
            targets: The targets.
            by_protocol: Targets of the calls of a protocol, instead of the others.
            settings: Other settings of the route.
        """
        matches = [({"protocol": name}, each) for name, each in by_protocol.items()]
        for match, each in [*matches, ({}, targets)]:
            route = {"match": {**match, "model": [*names]}, "targets": each, **settings}
            self.found.config["routes"].append(route)


def _is_list(document: YamlSetting) -> bool:
    return document.text("kind").endswith("List") and document.get("items").value is not None
