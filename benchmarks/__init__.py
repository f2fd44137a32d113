"""Speed of the gateway beside direct calls and real peers; see README.md."""
