"""Completion: adds the names, datatypes and shapes that the codecs on both sides of a call need.

Read `policy.py` first: the layer and the order of its steps. Each other file has one step.

GraphPipe names few tensors. TensorRT v1 sends no datatypes, no sizes and no batch axis. A raw
binary request is bytes only. `generate` does not separate inputs from parameters. Protocols of rows
send numbers without datatypes (`UntypedData`). Codecs stay pure: they leave the fields empty and
declare what they need (`Need`).

`policies/complete` adds these fields from the metadata of the model: names and order (`tensors`),
batch axes (`batch_axis`), datatypes of JSON (`untyped`), versions (`versions`), parameters
(`parameters`) and substitute datatypes (`datatypes`). The metadata is requested once and cached. It
is requested again after an error.

A grps client names a model by "name-version", and nothing marks where the version begins.
`routing/model_keys` stands before the router for such protocols. It compares whole keys first, then
plain names, then names before the last "-".

Servers differ in what they read. Codecs read strictly, and a `ServerReadingCodec` reads a refused
request again by the dialect of its model's server, which the model's metadata have
(`ModelMetadata.dialect`). Only a request that some server reads waits for this question. A reply
tells how its server writes JSON (`InferResponse.has_half_in_json` and others), and a frontend of
JSON writes it so.
"""
