"""The models, inputs and client of `gateway demo`. Read `client.py` first.

`models/<model>/<version>/model.onnx` is a model repository (`digits` 1 and 2, `language` 1).
`scans.json` and `sentences.json` are held-out inputs with their labels. `demo/train.py` in the
repository wrote all of these files.
"""
