"""The extension points: what protocols, policies, pages and wings are made of."""
