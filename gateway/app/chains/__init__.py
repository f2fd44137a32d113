"""The gateway's own layers, by chain; `gateway.app.layers` has their order."""
