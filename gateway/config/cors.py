"""Web pages of other origins that may use a listener, in the configuration file."""

from pydantic import Field

from gateway.settings.fields import Duration, Origin
from gateway.settings.model import Model


class CorsConfig(Model):
    """Web pages of other origins that may use a listener over HTTP. They send no cookies."""

    origins: tuple[Origin, ...] = Field(min_length=1)
    """Origins as browsers send them, such as `https://app.example.com`. `*` means all."""
    max_age: Duration = 600.0
    """How long browsers remember that a page may send a request. Default: `10m`."""
