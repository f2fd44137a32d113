"""Generated message classes, held in private descriptor pools; made by schemas/generate.py."""
