"""`/api/v1/migrations` and its pages: evidence, verdicts, samples and commands of cut-overs."""
