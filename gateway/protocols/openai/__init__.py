"""The HTTP form of OpenAI for embeddings, completions and models, and of Cohere for rerank.

Read `http/codec.py` first. `options.py` describes the options of listeners and upstreams,
`declarations.py` what the configuration declares of a model.
"""

from gateway.api.protocol import HttpBinding, ProtocolSpec
from gateway.protocols.openai.declarations import read_declaration
from gateway.protocols.openai.http.codec import HttpCodec
from gateway.protocols.openai.options import check_options, process_options
from gateway.protocols.openai.paths import claims
from gateway.protocols.openai.quotas import quota_headers

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
    ),
    options=check_options,
    process_options=process_options,
    declaration=read_declaration,
)
