"""Tasks on texts before models of tensors: embeddings, rerank and completions.

Read `task.py` first. `signature.py` finds the tensors of a model. `tokenizer.py` and `vectors.py`
are for models of token ids.
"""
