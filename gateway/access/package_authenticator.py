"""PackageAuthenticator: an `Authenticator` of a package, whose faults cost one request each."""

from collections.abc import Awaitable

from msgspec import structs

from gateway.api.access import Authenticator, Credentials
from gateway.ir.errors import GatewayError, Unauthenticated
from gateway.ir.identity import Identity
from gateway.ir.limits import is_blank, names_in
from gateway.telemetry.faults import FAULTS, internal_error


class PackageAuthenticator:
    """Asks an authenticator, and turns its faults into errors of one request.

    Args:
        authenticator: That of the package.
        name: The name of its entry point.
    """

    def __init__(self, authenticator: Authenticator, name: str) -> None:
        self._authenticator = authenticator
        self._name = name

    def authenticate(self, credentials: Credentials, /) -> Identity | Awaitable[Identity]:
        """Return the client. Raises GatewayError, InternalError for a bug of the package."""
        try:
            found = self._authenticator.authenticate(credentials)
        except FAULTS as error:  # a package raises anything
            raise self._error(error) from None
        return self._checked(found) if isinstance(found, Identity) else self._later(found)

    async def _later(self, found: Awaitable[Identity]) -> Identity:
        try:
            return self._checked(await found)
        except FAULTS as error:  # a package raises anything
            raise self._error(error) from None

    def _checked(self, found: object) -> Identity:
        if isinstance(found, Identity):
            if is_blank(found.name):
                raise Unauthenticated("a credential is missing: the authenticator named no client")
            return _without_blanks(found)
        raise TypeError(f"expected an Identity, found {type(found).__name__}")

    def _error(self, error: BaseException) -> GatewayError:
        if isinstance(error, GatewayError):
            return error
        return internal_error(error, part=f"authenticator {self._name!r}")


def _without_blanks(identity: Identity) -> Identity:
    """Return the identity without blank groups, labels and tier; itself if it has none."""
    groups = frozenset(names_in(identity.groups))
    labels = {name: value for name, value in identity.labels.items() if not is_blank(value)}
    tier = "" if is_blank(identity.tier) else identity.tier
    if (groups, labels, tier) == (identity.groups, identity.labels, identity.tier):
        return identity
    return structs.replace(identity, groups=groups, labels=labels, tier=tier)  # noqa: TID251  # no call
