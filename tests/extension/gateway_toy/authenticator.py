"""An authenticator: the header `x-toy-client` names the client, unless it is `eve`."""

from gateway.api import Credentials, Identity, Unauthenticated


class ByHeader:
    def authenticate(self, credentials: Credentials, /) -> Identity:
        name = dict(credentials.fields).get("x-toy-client", "guest")
        if name == "eve":
            raise Unauthenticated("eve is not welcome")
        return Identity(str(name))
