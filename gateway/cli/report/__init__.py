"""Reports of commands as one page of HTML, and as Markdown; read `blocks.py`."""
