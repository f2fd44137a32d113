"""The HTTP form of OpenAI for embeddings, completions and models, and of Cohere for rerank.

Read `http/codec.py` first. `options.py` describes the options of listeners and upstreams,
`declarations.py` what the configuration declares of a model.
"""

from gateway.api.protocol import HttpBinding, ProtocolSpec
from gateway.protocols.openai.declarations import read_declaration
from gateway.protocols.openai.http.codec import HttpCodec
from gateway.protocols.openai.options import check_options, process_options
from gateway.protocols.openai.paths import claims
from gateway.protocols.openai.quotas import QUOTA_HEADERS, quota_headers

_CLIENT_HEADERS = (
    "openai-organization",
    "openai-project",
    "x-stainless-arch",
    "x-stainless-helper-method",
    "x-stainless-lang",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-retry-count",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-timeout",
)
"""What OpenAI's own client for JavaScript sends, from web pages too."""

_VARYING = frozenset(
    {
        "id",
        "created",
        "system_fingerprint",
        "timings",
        "choices.message.tool_calls.id",
        "choices.delta.tool_calls.id",
        "usage.queue_time",
        "usage.prompt_time",
        "usage.completion_time",
        "usage.total_time",
    }
)
"""Ids, and times that some servers measure: those of llama.cpp and of Groq."""

SPEC = ProtocolSpec(
    name="openai",
    title="OpenAI embeddings, rerank and completions",
    page="openai.md",
    http=HttpBinding(
        codec=HttpCodec,
        claims=claims,
        path_option="base",
        sets_root_path=True,
        quota_headers=quota_headers,
        request_headers=_CLIENT_HEADERS,
        response_headers=QUOTA_HEADERS,
    ),
    options=check_options,
    process_options=process_options,
    declaration=read_declaration,
    varying=_VARYING,
)
