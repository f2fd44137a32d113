"""Asks for two embeddings of a model with the real client of OpenAI, in both encodings."""

import json
import sys

import openai

URL, MODEL = sys.argv[1:]

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="sk-key")
texts = ["ccc", "a"]
packed = client.embeddings.create(model=MODEL, input=texts)
plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
seen = {
    "base64": [row.embedding for row in packed.data],
    "float": [row.embedding for row in plain.data],
    "tokens": packed.usage.prompt_tokens,
}
print(json.dumps(seen))
