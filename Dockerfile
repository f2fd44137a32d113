# syntax=docker/dockerfile:1
# The container image of the gateway. `make image` puts everything that it installs into dist/image:
# the wheel of the gateway, and the packages of requirements/VARIANT.lock, whose hashes are checked
# here again. The build needs no network but for its base, and `make image-offline` makes that, too.
ARG BASE=python:3.11-slim
ARG BUILD_BASE=${BASE}

FROM ${BUILD_BASE} AS build
ARG VARIANT=slim
COPY requirements/${VARIANT}.lock /src/lock
COPY release/bill_of_materials.py release/bytecode.py gateway/__init__.py /src/gateway/
COPY dist/image/${VARIANT} /wheels
# Neither pip nor tests, headers and debugging symbols of packages stay. Only what a start imports is compiled.
RUN python3 -m venv /tmp/installer \
    && python3 -m venv --without-pip /opt/gateway \
    && /tmp/installer/bin/pip --python /opt/gateway/bin/python install --no-compile --no-index --find-links /wheels --require-hashes --requirement /src/lock \
    && /tmp/installer/bin/pip --python /opt/gateway/bin/python install --no-compile --no-index --no-deps /wheels/tensor_gateway-*.whl \
    && python3 /src/gateway/bill_of_materials.py environment /opt/gateway/lib/python3*/site-packages \
        > /opt/gateway/sbom.cdx.json \
    && find /opt/gateway/lib -type d -name tests -prune -exec rm -r {} + \
    && find /opt/gateway/lib -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.[ch]' -o -name '*.a' \) -delete \
    && { command -v strip > /dev/null || { apt-get update && apt-get install --yes --no-install-recommends binutils; }; } \
    && find /opt/gateway/lib -name '*.so' -not -path '*.libs/*' -exec strip --strip-unneeded {} + \
    && cp /src/gateway/bytecode.py /opt/gateway/ \
    && /opt/gateway/bin/python /opt/gateway/bytecode.py

FROM ${BASE}
ARG VERSION
ARG COMMIT
COPY --from=build /opt/gateway /opt/gateway
# That of Python itself, which is in the base. What has been compiled above stays as it is.
RUN /opt/gateway/bin/python /opt/gateway/bytecode.py
COPY dist/provenance.json /opt/gateway/provenance.json
COPY config/container.yaml /etc/gateway/gateway.yaml
LABEL org.opencontainers.image.title="Tensor Gateway" \
    org.opencontainers.image.description="Lets any inference client talk to any model server" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${COMMIT}"
ENV PATH=/opt/gateway/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# It has no name, and needs no shell and no folder of its own.
USER 10001
EXPOSE 8000 8001 8002 9901
STOPSIGNAL SIGTERM
# Liveness of the gateway alone: a dead model server never makes the container unhealthy.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["gateway", "health", "--live"]
ENTRYPOINT ["gateway"]
CMD ["serve", "/etc/gateway/gateway.yaml"]
