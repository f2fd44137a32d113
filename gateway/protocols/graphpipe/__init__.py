"""GraphPipe over HTTP, and over TCP and unix sockets.

Read `translate.py` first, then the codecs in `http.py` and `stream.py`.  `options.py` describes the
options of listeners and upstreams.
"""

from gateway.api.protocol import HttpBinding, ProtocolSpec, StreamBinding
from gateway.protocols.graphpipe.http import HttpCodec
from gateway.protocols.graphpipe.options import check_options
from gateway.protocols.graphpipe.paths import IS_ALIVE, IS_READY, PREFIX
from gateway.protocols.graphpipe.stream import GraphPipeStreamCodec, SizePrefixFramer

SPEC = ProtocolSpec(
    name="graphpipe",
    title="GraphPipe",
    page="graphpipe.md",
    http=HttpBinding(
        codec=HttpCodec,
        prefixes=(PREFIX,),
        path_option="path",
        public=(IS_ALIVE, IS_READY),
    ),
    stream=StreamBinding(
        codec=GraphPipeStreamCodec, server_framer=SizePrefixFramer, client_framer=SizePrefixFramer
    ),
    options=check_options,
    default_model="default_model",
)
