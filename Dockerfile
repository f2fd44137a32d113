# syntax=docker/dockerfile:1
# The container image of the gateway. The second stage has no build tools.
#   docker build --tag tensor-gateway .
#   docker run --rm -p 8000:8000 -p 8001:8001 tensor-gateway
# The extra `kubernetes` is for cut-overs with `coordinate: kubernetes`. It is 130 MB, as much as all of
# `onnx`, so it is not there by default:
#   docker build --build-arg EXTRAS=onnx,kubernetes --tag tensor-gateway .
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
ARG EXTRAS=onnx
# For the extension gateway/_accelerated.pyx.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY gateway ./gateway
RUN python -m venv /opt/gateway \
    && /opt/gateway/bin/pip install --no-cache-dir ".[${EXTRAS}]"

FROM python:${PYTHON}-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin gateway
COPY --from=build /opt/gateway /opt/gateway
COPY config/container.yaml /etc/gateway/gateway.yaml
ENV PATH=/opt/gateway/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001
EXPOSE 8000 8001 8002 9901
STOPSIGNAL SIGTERM
# The check uses the HTTP listener, as clients do.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["gateway", "health", "oip+http://127.0.0.1:8000"]
ENTRYPOINT ["gateway"]
CMD ["serve", "/etc/gateway/gateway.yaml"]
