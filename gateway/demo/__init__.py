"""What `gateway demo` shows: small real models, and inputs that no model has seen in training.

Here: `models/<model>/<version>/model.onnx`, laid out as a model repository (`digits` 1 and 2,
`language` 1); `scans.json` and `sentences.json`, held-out inputs with their right answers; `scans`,
which reads and draws them.  Not here: the training, which is `demo/train.py` in the repository and
wrote every file of data in this package; and the running of a model, which is a backend's work.
"""
